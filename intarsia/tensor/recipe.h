#pragma once
// Views whose shards are copies: replays the view ops on the base to update them, and carries writes to them over to
// the base.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Note [Views that communicate]
// A view op whose result is on the same ranks as its base is a view of the local tensors, and writing through it
// changes the base. If the result needs data from other ranks (row 3 of a tensor sharded by rows), its shards are a
// copy. Such a view keeps a recipe: the base and the op that made it. A write to the view is carried over to the base,
// and a view whose base has changed is recomputed before it is read. Printing does not do so: it shows the values last
// read and says so.
struct Recipe {
  at::Tensor base;  // the distributed tensor that is viewed
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // of the op; the viewed tensor's place is left empty
  size_t self;                    // that place
  size_t output;                  // which result of the op this is
  std::vector<int64_t> sizes;     // global, of that result
  uint64_t seen;                  // version of the base that the copy shows
  // The view is a reshape of the local tensors that some rank had to copy because of its strides. Another rank may not
  // have had to, so updates must not communicate: the copy has the elements of the base's shard, in order.
  bool local = false;
};

// The sum of the tensors' version counters.
uint64_t count_writes(const Shards& tensors);

// Makes the view of another tensor that has the form of the recipe's base.
at::Tensor replay(const Recipe& recipe, const at::Tensor& base);

// Writes the values of a view, in this layout, into the local tensors of the recipe's base. The caller records the
// write.
void write_through(const Recipe& recipe, const Shards& values, const Layout* layout);

// Whether two views overlap; true if that cannot be decided.
bool overlap(const Recipe& a, const Recipe& b);

// Copies, also into tensors that show one element many times.
void write_into(at::Tensor target, at::Tensor value);

}  // namespace intarsia
