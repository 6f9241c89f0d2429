#include "intarsia/data_parallel/fully_shard/fully_shard_state.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/end_of_backward.h"
#include "intarsia/data_parallel/fully_shard/param_group.h"
#include "intarsia/data_parallel/fully_shard/shared_buffers.h"

namespace intarsia {
namespace {

struct States {
  std::mutex mutex;
  std::map<const CollectiveOrder*, std::unique_ptr<FullyShardState>> by_order;
};
States& states() {
  static auto* all = new States;
  return *all;
}

}  // namespace

FullyShardState& FullyShardState::of(CollectiveOrder& order) {
  std::lock_guard lock(states().mutex);
  auto& state = states().by_order[&order];
  if (!state) state = std::make_unique<FullyShardState>(order);
  return *state;
}

bool FullyShardState::wrapped_somewhere(const torch::nn::Module& module) {
  std::lock_guard lock(states().mutex);
  auto& all = states().by_order;
  return std::any_of(all.begin(), all.end(), [&](auto& entry) { return entry.second->modules_.has(module); });
}

FullyShardState& FullyShardState::of(const ParamGroup& group) { return of(group.order()); }

void FullyShardState::add(const Group& group) { groups_.push_back(group); }

void FullyShardState::remove(const ParamGroup& group) {
  if (last_ == &group) last_ = nullptr;
  std::erase_if(groups_, [](auto& weak) { return weak.expired(); });
  std::erase(ahead_, &group);
  for (auto& sequence : sequences_) {
    std::erase(sequence.now, &group);
    std::erase(sequence.before, &group);
  }
}

// --- gathering

void FullyShardState::begin_unshard(ParamGroup& group) {
  if (group.is_whole() || group.is_begun()) return;
  group.check_has_data();
  if (group.is_shared()) agree(group.id(), ParamGroup::kGather);
  group.begin_unshard();
}

void FullyShardState::gather(ParamGroup& group) {
  if (group.is_whole()) return;
  do begin_unshard(group);
  while (!group.finish_unshard());
  prefetch(group, is_in_backward());
}

void FullyShardState::unshard(ParamGroup& group) {
  group.reshard_if_written();
  gather(group);
  group.show_whole();
}

void FullyShardState::show_again(ParamGroup& group) {
  if (!group.is_asked()) return;
  group.reshard_if_written();
  gather(group);
  group.show_if_asked();
}

void FullyShardState::need_whole(const Group& group) {
  if (is_in_backward()) {
    used_in_backward(group);
  } else {
    used_in_forward(*group);
    group->reshard_if_written();
  }
  gather(*group);
  group->show_if_asked();
}

void FullyShardState::used_in_forward(ParamGroup& group) {
  if (last_ == &group) return;
  auto* before = std::exchange(last_, &group);
  if (before && before->reshards_after_forward() && !before->stays_in_forward()) before->reshard_after_forward();
}

void FullyShardState::hold(ParamGroup& group, bool held) {
  if (group.hold(held)) return;
  if (last_ != &group && group.reshards_after_forward() && !group.stays_in_forward()) group.reshard_after_forward();
}

ParamGroup* FullyShardState::Sequence::after(ParamGroup* group) {
  if (std::find(now.begin(), now.end(), group) != now.end())
    before = std::move(now), now.clear();  // the next step begins
  now.push_back(group);
  auto found = std::find(before.begin(), before.end(), group);
  return found == before.end() || found + 1 == before.end() ? nullptr : *(found + 1);
}

// Starts to gather the groups that this one names, or else the one that came next in the last step.
void FullyShardState::prefetch(ParamGroup& group, bool in_backward) {
  std::erase(ahead_, &group);
  auto* next = sequences_[in_backward].after(&group);
  auto named = group.prefetched(in_backward);
  for (auto& one : named) begin_ahead(*one);
  if (named.empty() && ahead_.empty() && next) begin_ahead(*next);
}

void FullyShardState::begin_ahead(ParamGroup& group) {
  if (group.is_whole() || std::find(ahead_.begin(), ahead_.end(), &group) != ahead_.end()) return;
  ahead_.push_back(&group);
  begin_unshard(group);
}

// Not on behalf of one group: ranks at different groups must be able to exchange their positions.
void FullyShardState::agree(int64_t group, int64_t phase) {
  CauseScope cause(kShardCause, false);
  all_know_ = true;
  collective_order_.agree(group, phase);
  all_know_ = false;
}

// --- a backward pass

void FullyShardState::before_gradient(const Group& group, size_t index, const at::Tensor& grad) {
  used_in_backward(group);
  group->before_gradient(index, grad);
}

void FullyShardState::after_gradient(const Group& group, size_t index) {
  if (group->after_gradient(index)) reduce(group);
}

// The reduction does not reshard a group that expects no gradient: it is resharded when a node needs another group.
void FullyShardState::used_in_backward(const Group& group) {
  arm();
  const void* node = torch::autograd::get_current_node().get();
  bool other_node = std::exchange(last_node_, node) != node;
  if (!touched_.empty() && touched_.back() == group) return;
  auto last = touched_.empty() ? nullptr : touched_.back();
  std::erase(touched_, group);
  touched_.push_back(group);
  if (last && other_node && last->is_frozen()) last->reshard_after_backward();
}

// What is sent stays in memory until the reduction is finished, so few are in progress at a time.
void FullyShardState::reduce(const Group& group) {
  constexpr size_t kUnderWay = 2;
  agree(group->id(), group->reduce_phase());
  group->begin_reduction();
  if (std::find(reduced_.begin(), reduced_.end(), group) == reduced_.end()) reduced_.push_back(group);
  reducing_.push_back(group);
  if (reducing_.size() <= kUnderWay) return;
  reducing_.front()->finish_reductions();
  reducing_.erase(reducing_.begin());
}

void FullyShardState::arm() {
  if (armed_) return;
  armed_ = true;
  all_know_ = false;
  at_end_of_backward(
      [this] {
        armed_ = false;
        end();
      },
      [this] { failed(); });
}

void FullyShardState::end() {
  try {
    write();
  } catch (...) {
    close_step();
    throw;
  }
  close_step();
}

void FullyShardState::close_step() {
  auto groups = std::exchange(touched_, {});
  for (auto& group : std::exchange(reduced_, {})) groups.push_back(group);
  reducing_.clear();
  last_node_ = nullptr;
  last_ = nullptr;
  for (auto* group : std::exchange(ahead_, {})) group->reshard();
  for (auto& group : groups) group->forget_step();
}

// A rank that alone has such a parameter says so in its next agreement.
void FullyShardState::check_late_parameters() {
  auto late = modules_.late_parameter();
  if (late.empty()) return;
  CauseScope cause(kShardCause, false);
  try {
    collective_order_.agree(CollectiveOrder::kNoModule, CollectiveOrder::kFailed);
  } catch (...) {  // so that others see an error as well
  }
  TORCH_CHECK_VALUE(
      false, "[fully_shard] ", late, " was registered after fully_shard was called: it is in no group, and ",
      "its gradient would differ between the ranks. Register parameters first, or list it in ", "ignored_parameters.");
}

void FullyShardState::write() {
  at::NoGradGuard no_grad;
  check_late_parameters();
  auto groups = touched_;
  for (auto& weak : groups_) groups.push_back(weak.lock());
  for (auto& group : groups) {
    if (group && group->is_unreduced()) reduce(group);
  }
  if (reduced_.empty()) return;
  agree(CollectiveOrder::kNoModule, CollectiveOrder::kEnd);
  StepReport mine;
  std::vector<std::string> names;
  bool as_zeros = true;
  for (auto& group : reduced_) {
    group->append_uses(mine.uses);
    for (auto& member : group->members()) names.push_back(member.name());
    as_zeros = as_zeros && group->unused_as_zeros();
  }
  SharedBuffers buffers;
  for (auto& group : reduced_) buffers.add(group->buffers(), group->mesh());
  mine.steps = buffers.fingerprint();
  CauseScope cause(kShardCause, false);
  StepReports reports;
  reports.begin(collective_order_.axis(), mine);
  for (auto& group : reduced_) group->finish_reductions();
  reports.finish();
  reports.check(kShardCause, names, reduced_[0]->name(),
                as_zeros ? StepReports::Missing::allowed : StepReports::Missing::everywhere);
  size_t first = 0;
  for (auto& group : reduced_) {
    group->write_gradients(reports, first);
    first += group->members().size();
  }
  if (buffers.differ(reports)) buffers.take_first();
}

void FullyShardState::failed() {
  armed_ = false;
  CauseScope cause(kShardCause, false);
  try {
    if (!all_know_) collective_order_.agree(CollectiveOrder::kNoModule, CollectiveOrder::kFailed);
  } catch (...) {  // the others raise it as well
  }
  close_step();
}

}  // namespace intarsia
