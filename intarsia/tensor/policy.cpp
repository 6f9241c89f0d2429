#include "intarsia/tensor/policy.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace intarsia {
namespace {

bool strict_by_environment() {
  static const bool strict = [] {
    auto* value = std::getenv("INTARSIA_STRICT");
    return value && std::string_view(value) != "0" && std::string_view(value) != "";
  }();
  return strict;
}

// The nodes of one thread that were created in scopes, by number.
struct Made {
  uint64_t begin, end;
  PlainTensors policy;
};

// See Note [Scopes and graphs]. A scope without nodes leaves nothing; of the others, the newest are kept.
class MadeInScopes {
 public:
  void add(Made made) {
    if (made.begin >= made.end || made.policy == PlainTensors::error) return;
    std::lock_guard lock(mutex_);
    auto& list = of_threads_[at::RecordFunction::currentThreadId()];
    if (!list.empty() && list.back().end == made.begin && list.back().policy == made.policy) {
      list.back().end = made.end;
    } else {
      list.push_back(made);
    }
    if (list.size() > kKept) list.pop_front();
  }

  PlainTensors find(const torch::autograd::Node& node) {
    std::lock_guard lock(mutex_);
    auto list = of_threads_.find(node.thread_id());
    if (list == of_threads_.end()) return PlainTensors::error;
    auto number = node.sequence_nr();
    // A derivative may be recorded after a later scope, so the list is not in order. The newest are needed most often.
    auto found = std::find_if(list->second.rbegin(), list->second.rend(),
                              [&](auto& made) { return made.begin <= number && number < made.end; });
    return found == list->second.rend() ? PlainTensors::error : found->policy;
  }

 private:
  static constexpr size_t kKept = 1 << 16;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::deque<Made>> of_threads_;
};

MadeInScopes& made_in_scopes() {
  static auto* all = new MadeInScopes;
  return *all;
}

thread_local PlainTensors plain_tensors_ = PlainTensors::error;
thread_local uint64_t first_node_ = 0;  // created under that policy

void change_plain_policy(PlainTensors policy) {
  auto next = at::sequence_number::peek();
  made_in_scopes().add({first_node_, next, plain_tensors_});
  plain_tensors_ = policy;
  first_node_ = next;
}

thread_local bool strict_ = strict_by_environment();
thread_local bool local_errors_ = false;
std::atomic<PendingWrites> pending_writes_{PendingWrites::settle};

struct FollowedLayouts {
  std::mutex mutex;
  std::unordered_map<const Layout*, const Layout*> by_gradient;  // layouts are interned, and stay
};
FollowedLayouts& followed() {
  static auto* all = new FollowedLayouts;
  return *all;
}

}  // namespace

// If parameters are sharded along different dims but their pending gradients have the same layout, the first one
// decides.
void let_plain_state_follow(const Layout* gradient, const Layout* state) {
  std::lock_guard lock(followed().mutex);
  followed().by_gradient.emplace(gradient, state);
}

const Layout* layout_of_plain_state(const Layout* gradient) {
  std::lock_guard lock(followed().mutex);
  auto found = followed().by_gradient.find(gradient);
  return found == followed().by_gradient.end() ? nullptr : found->second;
}

PlainTensorScope::PlainTensorScope(PlainTensors policy) : outer_(plain_tensors_) { change_plain_policy(policy); }
PlainTensorScope::~PlainTensorScope() { change_plain_policy(outer_); }
PlainTensors plain_tensor_policy() { return plain_tensors_; }

PlainTensors plain_tensor_policy_of_graph() {
  if (torch::autograd::get_current_graph_task_id() < 0) return PlainTensors::error;
  auto node = torch::autograd::get_current_node();
  return node ? made_in_scopes().find(*node) : PlainTensors::error;
}

void pass_on_policy(PlainTensors policy) {
  if (auto next = at::sequence_number::peek()) made_in_scopes().add({next - 1, next, policy});
}

StrictScope::StrictScope(bool strict) : outer_(strict_) { strict_ = strict; }
StrictScope::~StrictScope() { strict_ = outer_; }
bool is_strict() { return strict_; }

LocalErrorScope::LocalErrorScope(bool local) : outer_(local_errors_) { local_errors_ = local; }
LocalErrorScope::~LocalErrorScope() { local_errors_ = outer_; }
bool errors_are_local() { return local_errors_; }

void set_pending_writes(PendingWrites policy) { pending_writes_.store(policy, std::memory_order_relaxed); }
PendingWrites pending_writes() { return pending_writes_.load(std::memory_order_relaxed); }

}  // namespace intarsia
