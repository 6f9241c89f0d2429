#include "intarsia/data_parallel/shard_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/end_of_backward.h"
#include "intarsia/data_parallel/shard_group.h"
#include "intarsia/data_parallel/shared_buffers.h"

namespace intarsia {
namespace {

struct Orders {
  std::mutex mutex;
  std::map<const Lane*, std::unique_ptr<ShardOrder>> by_lane;
};
Orders& orders() {
  static auto* all = new Orders;
  return *all;
}

}  // namespace

ShardOrder& ShardOrder::of(Lane& lane) {
  std::lock_guard lock(orders().mutex);
  auto& order = orders().by_lane[&lane];
  if (!order) order = std::make_unique<ShardOrder>(lane);
  return *order;
}

bool ShardOrder::wrapped_somewhere(const torch::nn::Module& module) {
  std::lock_guard lock(orders().mutex);
  auto& all = orders().by_lane;
  return std::any_of(all.begin(), all.end(), [&](auto& entry) { return entry.second->modules_.has(module); });
}

void ShardOrder::used(ShardGroup& group) {
  if (last_ == &group) return;
  auto* before = last_;
  last_ = &group;
  if (before && before->reshards_after_forward() && !before->is_held()) before->reshard_after_forward();
}

void ShardOrder::released(ShardGroup& group) {
  if (last_ != &group && group.reshards_after_forward() && !group.is_held()) group.reshard_after_forward();
}

void ShardOrder::came(ShardGroup* group) { groups_.push_back(group); }

void ShardOrder::gone(const ShardGroup* group) {
  if (last_ == group) last_ = nullptr;
  std::erase(groups_, group);
  std::erase(ahead_, group);
  for (auto& sequence : sequences_) {
    std::erase(sequence.now, group);
    std::erase(sequence.before, group);
  }
}

ShardGroup* ShardOrder::Sequence::after(ShardGroup* group) {
  if (std::find(now.begin(), now.end(), group) != now.end()) before = std::move(now), now.clear();  // it comes round again
  now.push_back(group);
  auto found = std::find(before.begin(), before.end(), group);
  return found == before.end() || found + 1 == before.end() ? nullptr : *(found + 1);
}

void ShardOrder::gathered(ShardGroup& group, bool in_backward) {
  std::erase(ahead_, &group);
  auto* next = sequences_[in_backward].after(&group);
  auto named = group.prefetched(in_backward);
  for (auto& one : named) begin_ahead(*one);
  if (named.empty() && ahead_.empty() && next) begin_ahead(*next);
}

void ShardOrder::begin_ahead(ShardGroup& group) {
  if (group.is_whole() || std::find(ahead_.begin(), ahead_.end(), &group) != ahead_.end()) return;
  ahead_.push_back(&group);
  group.begin_unshard();
}

// Not on behalf of one group: ranks at different ones must be able to tell each other.
void ShardOrder::word(int64_t user, int64_t part) {
  CauseScope cause("fully_shard", false);
  all_know_ = true;
  lane_.check_always(user, part);
  all_know_ = false;
}

void ShardOrder::used_in_backward(const std::shared_ptr<ShardGroup>& group) {
  arm();
  const void* node = torch::autograd::get_current_node().get();
  bool other_node = std::exchange(last_node_, node) != node;
  if (!touched_.empty() && touched_.back() == group) return;
  auto last = touched_.empty() ? nullptr : touched_.back();
  std::erase(touched_, group);
  touched_.push_back(group);
  if (last && other_node && last->is_frozen()) last->reshard_after_backward();
}

void ShardOrder::arm() {
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

void ShardOrder::reducing(const std::shared_ptr<ShardGroup>& group) {
  constexpr size_t kUnderWay = 2;
  if (std::find(reduced_.begin(), reduced_.end(), group) == reduced_.end()) reduced_.push_back(group);
  reducing_.push_back(group);
  if (reducing_.size() <= kUnderWay) return;
  reducing_.front()->finish_reductions();
  reducing_.erase(reducing_.begin());
}

void ShardOrder::end() {
  try {
    write();
  } catch (...) {
    close_step();
    throw;
  }
  close_step();
}

void ShardOrder::close_step() {
  auto groups = std::exchange(touched_, {});
  for (auto& group : std::exchange(reduced_, {})) groups.push_back(group);
  reducing_.clear();
  last_node_ = nullptr;
  last_ = nullptr;
  for (auto* group : std::exchange(ahead_, {})) group->reshard();
  for (auto& group : groups) group->forget_step();
}

// A rank that alone has such a parameter says so in place of the next word.
void ShardOrder::check_late_parameters() {
  auto late = modules_.late_parameter();
  if (late.empty()) return;
  CauseScope cause("fully_shard", false);
  try {
    lane_.check_always(Lane::kNobody, Lane::kFailed);
  } catch (...) {  // that others see an error as well
  }
  TORCH_CHECK_VALUE(false, "[fully_shard] ", late, " was registered after fully_shard was called: it is in no group, and ",
                    "its gradient would differ between the ranks. Register parameters first, or list it in ",
                    "ignored_parameters.");
}

void ShardOrder::write() {
  at::NoGradGuard no_grad;
  check_late_parameters();
  for (auto& group : std::vector(touched_)) group->reduce_rest();
  for (auto* group : std::vector(groups_)) group->reduce_rest();
  if (reduced_.empty()) return;
  CauseScope cause("fully_shard", false);
  word(Lane::kNobody, Lane::kEnd);
  Report mine;
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
  Reports reports;
  reports.begin(lane_.axis(), mine);
  for (auto& group : reduced_) group->finish_reductions();
  reports.finish();
  reports.check("fully_shard", names, reduced_[0]->name(), as_zeros ? Reports::Missing::allowed : Reports::Missing::everywhere);
  size_t first = 0;
  for (auto& group : reduced_) {
    group->write_gradients(reports, first);
    first += group->members().size();
  }
  if (buffers.differ(reports)) buffers.take_first();
}

void ShardOrder::failed() {
  armed_ = false;
  CauseScope cause("fully_shard", false);
  try {
    if (!all_know_) lane_.check_always(Lane::kNobody, Lane::kFailed);
  } catch (...) {  // the others raise it, too
  }
  close_step();
}

}  // namespace intarsia
