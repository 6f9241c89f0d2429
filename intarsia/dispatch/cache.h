#pragma once
// The cache of dispatch's decisions: the same op on tensors of the same form and layout is decided once.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/util/SmallVector.h>

#include "intarsia/core/layout.h"
#include "intarsia/dispatch/key.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/rules/lowering.h"

namespace intarsia {

// What dispatch does with one kind of call.
struct Decision {
  Route route = Route::row;
  std::vector<const Layout*> in;  // per tensor; null where it is plain or undefined
  std::vector<const Layout*> out;
  std::vector<const Layout*> seen_in;  // as rules see them: a plain number is replicated, and null is undefined
  std::vector<TensorForm> inputs, outputs;
  std::vector<char> contiguous;  // per output
  std::vector<Plan> plans;       // per tensor: how it gets there; no steps if it is there already
  bool any_moves = false;
  std::vector<int> copied;                            // tensors written as a copy, which is then sharded and copied in
  bool known_outputs = true;                          // false: the forms are read off the results
  std::vector<std::vector<c10::IValue>> local_sizes;  // per slot: what size arguments become
  c10::SmallVector<int64_t, 5> local_shape;           // the same, of output 0, where there is one slot
  std::vector<c10::SmallVector<int64_t, 5>> local_strides;  // per output, where there is one slot
  std::vector<int64_t> agreeing;                            // axes along which the ranks exchange errors
  Lowering lowering;                                        // of Route::lowering, which needs nothing else
  bool unsettled = false;                                   // a tensor would have to be settled to be written
  bool scales_pending = false;                              // writes a pending value by numbers, and leaves it pending
  bool direct = false;                                      // one slot, and only the plain op to call: see run_directly
  uint64_t what = 0;                                        // op and integers, for Note [Origins]; 0: not needed
};

// How often this thread looked for a decision, over all caches.
struct CacheCounts {
  uint64_t found = 0, missed = 0;
};
CacheCounts& cache_counts();

// Empties every cache, because rules have changed.
void forget_decisions();

// The decisions of one op. Bounded: when full, it starts afresh. Thread-safe.
class DecisionCache {
 public:
  std::shared_ptr<const Decision> find(const CallKey& key) const;
  void insert(const CallKey& key, std::shared_ptr<const Decision> decision);
  size_t size() const;
  static constexpr size_t kCapacity = 4096;

 private:
  struct Hash {
    size_t operator()(const CallKey& key) const;
  };
  mutable std::mutex mutex_;
  mutable std::unordered_map<CallKey, std::shared_ptr<const Decision>, Hash> decisions_;
  mutable uint64_t generation_ = 0;  // of the costs that led to them
};

}  // namespace intarsia
