#pragma once
// Runs a call: key, decision, redistribution, local calls, wrapping of the results.

#include <optional>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "intarsia/dispatch/op.h"
#include "intarsia/libtorch/dispatch_keys.h"

namespace intarsia {

// No op has a kernel for this key, so redispatching with it leads to an op's composite kernel.
inline const c10::DispatchKeySet kComposite(kCompositeKey);

// Excluded while a kernel runs: autograd and autocast have already run, and tensors that the kernel creates are plain.
inline constexpr auto kAboveKernels =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | kFactoryKeys;

// Leads directly to an ordinary CPU kernel.
inline constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// Note [Lazy values under Python modes]
// A shard may be a lazy conjugate or negative, which is computed by keys of its own. A TorchDispatchMode excludes all
// keys above its own when it calls ops, those included; for the ops on shards they are included again.
class LazyValuesScope {
 public:
  LazyValuesScope() {
    static constexpr c10::DispatchKeySet keys(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    auto now = c10::impl::tls_local_dispatch_key_set();
    if (C10_UNLIKELY(now.excluded_.has_any(keys))) guard_.emplace(now.included_, now.excluded_ - keys);
  }

 private:
  std::optional<c10::impl::ForceDispatchKeyGuard> guard_;
};

// What the caller has already found: the key of the call, and the decision for it, if any.
struct Found {
  const CallKey* key = nullptr;
  std::shared_ptr<const Decision> decision = nullptr;
};

// Runs an op whose arguments are the last on the stack; leaves its results there.
void run_op(const Op& op, std::vector<c10::IValue>& stack, Found found = {});

}  // namespace intarsia
