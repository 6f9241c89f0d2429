#pragma once
// Views whose shards are copies: replays the view ops on the base to update them, and writes back into the base what is
// written to them.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"

namespace intarsia {

// Note [Views that communicate]
// A view op whose result lies on the same ranks as its base is a view of the local tensors, and writing through it
// changes the base. Where the result has to be brought together from other ranks (row 3 of a tensor cut by rows), its
// shards are a copy. Such a view keeps a recipe: the base and the op that made it. A write to the view is carried back
// into the base, and a view whose base has changed is made anew before it is read. Printing is no reading: it shows
// what was last known and says so.
struct Recipe {
  at::Tensor base;  // the distributed tensor that is viewed
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // of the op; the viewed tensor's place is left empty
  size_t self;                    // that place
  size_t output;                  // which result of the op this is
  std::vector<int64_t> sizes;     // global, of that result
  uint64_t seen;                  // version of the base that the copy shows
  // The view is a reshape of the local tensors that some rank had to copy, for its strides. Another rank may not have
  // had to, so keeping in step must not communicate: the copy has the elements of the base's shard, in order.
  bool local = false;
};

// How often the tensors were written to by whoever counts writes.
uint64_t count_writes(const Shards& tensors);

// Makes the view of another tensor like the recipe's base.
at::Tensor replay(const Recipe& recipe, const at::Tensor& base);

// Writes the values of a view, laid out so, into the local tensors of the recipe's base. The caller tells the base.
void write_through(const Recipe& recipe, const Shards& values, const Layout* layout);

// Whether two views overlap; true if that cannot be decided.
bool overlap(const Recipe& a, const Recipe& b);

// Copies, also into tensors that show one place many times.
void write_into(at::Tensor target, at::Tensor value);

}  // namespace intarsia
