#include "intarsia/tensor/policy.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace intarsia {
namespace {

bool strict_by_environment() {
  static const bool strict = [] {
    auto* value = std::getenv("INTARSIA_STRICT");
    return value && std::string_view(value) != "0" && std::string_view(value) != "";
  }();
  return strict;
}

thread_local PlainTensors plain_tensors_ = PlainTensors::error;
thread_local bool strict_ = strict_by_environment();
thread_local bool local_errors_ = false;
std::atomic<PendingWrites> pending_writes_{PendingWrites::settle};

}  // namespace

PlainTensorScope::PlainTensorScope(PlainTensors policy) : outer_(plain_tensors_) { plain_tensors_ = policy; }
PlainTensorScope::~PlainTensorScope() { plain_tensors_ = outer_; }
PlainTensors plain_tensor_policy() { return plain_tensors_; }

StrictScope::StrictScope(bool strict) : outer_(strict_) { strict_ = strict; }
StrictScope::~StrictScope() { strict_ = outer_; }
bool is_strict() { return strict_; }

LocalErrorScope::LocalErrorScope(bool local) : outer_(local_errors_) { local_errors_ = local; }
LocalErrorScope::~LocalErrorScope() { local_errors_ = outer_; }
bool errors_are_local() { return local_errors_; }

void set_pending_writes(PendingWrites policy) { pending_writes_.store(policy, std::memory_order_relaxed); }
PendingWrites pending_writes() { return pending_writes_.load(std::memory_order_relaxed); }

}  // namespace intarsia
