#pragma once
// Tracks the local tensors of copied views that the program holds, and writes through them: see Note [Writes through
// local memory] in body.h.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"
#include "intarsia/tensor/recipe.h"

namespace intarsia {

class LentViews;

// The copy of one view.
struct Lent {
  Recipe recipe;  // its base is a separate tensor over the same local tensors: Lent does not keep its lender alive
  Shards values;
  const Layout* layout;
  uint64_t writes;                     // to `values` that the base knows
  uint64_t seen;                       // version of the base that the values show
  std::shared_ptr<LentViews> further;  // views of the copy that are lent in turn; null for most

  bool is_returned() const;  // nothing else holds it any more
};

// Everything lent of one memory, and how often that was written to. It outlives the tensor: a local tensor may be all
// that the program has kept of a view of a view.
class LentViews {
 public:
  LentViews(Shards memory, uint64_t writes) : memory_(std::move(memory)), writes_(writes) {}

  // Changes after every write to the memory, whoever writes.
  uint64_t version() const;
  void count_write() { writes_.fetch_add(1, std::memory_order_relaxed); }

  // Records that these values show the memory as it is now.
  void lend(Lent lent);
  void renew(const Shards& values);

  // Carries over into the memory what was written to the copies. Returns whether there was anything.
  bool take_back();
  bool empty();

  // Call this when the memory's pending reductions have run in place.
  void settle();

 private:
  std::vector<std::unique_ptr<Lent>>::iterator find(const Shards& values);

  std::mutex mutex_;
  Shards memory_;
  std::atomic<uint64_t> writes_;  // through dispatch, and by take_back
  std::vector<std::unique_ptr<Lent>> lent_;
};

}  // namespace intarsia
