#pragma once
// Decisions of dispatch by call: the same op on tensors of the same form and layout is decided once.

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

// What to do with one call.
struct Decision {
  Route route = Route::row;
  std::vector<const Layout*> in;  // per tensor; null where it is plain or undefined
  std::vector<const Layout*> out;
  std::vector<const Layout*> seen_in;  // as rules see them: a plain number is whole everywhere, and null is undefined
  std::vector<TensorForm> inputs, outputs;
  std::vector<char> contiguous;  // per output
  std::vector<Plan> plans;       // per tensor: how it gets there; no steps if it is there already
  bool any_moves = false;
  std::vector<int> copied;                            // tensors written in a copy, which is then cut and copied back
  bool known_outputs = true;                          // false: the forms are read off the results
  std::vector<std::vector<c10::IValue>> local_sizes;  // per slot: what size arguments become
  c10::SmallVector<int64_t, 5> local_shape;           // the same, of output 0, where there is one slot
  std::vector<c10::SmallVector<int64_t, 5>> local_strides;  // per output, where there is one slot
  std::vector<int64_t> agreeing;                            // axes along which ranks ask each other for errors
  Lowering lowering;                                        // of Route::lowering, which needs nothing else
  bool unsettled = false;                                   // a tensor would have to be settled to be written
  bool scales_pending = false;                              // writes a pending value by numbers, and leaves it pending
  bool direct = false;                                      // one slot and nothing to do but call: see run_directly
  uint64_t what = 0;                                        // op and whole numbers, for Note [Origins]; 0: nobody asks
};

// How often this thread looked for a decision, in all caches together.
struct CacheCounts {
  uint64_t found = 0, missed = 0;
};
CacheCounts& cache_counts();

// Every cache starts afresh: rules have changed.
void forget_decisions();

// Bounded: when full, it starts afresh. Safe with several threads.
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
