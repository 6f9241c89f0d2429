// Reductions of a ParamGroup: see Note [A backward pass of fully_shard].

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/fully_shard/flat_gradients.h"
#include "intarsia/data_parallel/fully_shard/param_group.h"

namespace intarsia {

void ParamGroup::before_gradient(size_t index, const at::Tensor& grad) {
  check_has_no_graph(kShardCause, members_[index].name(), grad);
  hold_hooks(members_[index].leaf(), /*tensor_hooks=*/true);
  members_[index].before_accumulate();
}

bool ParamGroup::after_gradient(size_t index) {
  members_[index].after_accumulate();
  came_[index] = true;
  if (!syncs_) members_[index].defer_gradient(options_.mp_policy.reduce_dtype);
  if (!all_came()) return false;
  if (syncs_) return true;
  std::fill(came_.begin(), came_.end(), false);
  if (reshard_after_backward_) reshard();
  return false;
}

// Whether all gradients of this pass have arrived.
bool ParamGroup::all_came() const {
  auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (size_t i = 0; i < members_.size(); ++i) {
    if (came_[i]) continue;
    auto leaf = members_[i].leaf();
    if (!leaf.requires_grad()) continue;
    auto node = members_[i].accumulator();
    if (node && (!nodes || nodes->count(node.get()))) return false;
  }
  return true;
}

int64_t ParamGroup::reduce_phase() const {
  int64_t hash = 0;
  for (auto& member : members_) hash = (hash * 31 + member.leaf().requires_grad()) % 999'983;
  return kReduce + hash;
}

void ParamGroup::begin_reduction() {
  at::NoGradGuard no_grad;
  CauseScope cause(cause_, false);
  auto& round = rounds_.emplace_back();
  ShardsList send;
  CountsList counts;
  for (size_t i = 0; i < members_.size(); ++i) {
    auto& member = members_[i];
    if (!member.leaf().requires_grad()) continue;
    round.members.push_back(i);
    if (!came_[i]) member.fetch_pending();
    used_[i] = used_[i] || member.has_gradient();
    send.push_back(member.parts_of_gradient(options_.mp_policy.reduce_dtype.value_or(member.gradient_dtype())));
    counts.push_back(member.gradient_counts());
    member.drop_gradient();
    came_[i] = false;
  }
  reduce_over_shards(round, send, counts);
  if (reshard_after_backward_) reshard();
}

void ParamGroup::reduce_over_shards(Round& round, const ShardsList& send, const CountsList& counts) {
  auto& axis = *axes_.shard;
  auto op = divide_factor_ ? ReduceOp::sum : ReduceOp::avg;
  round.parts = custom_reduce_scatter_ ? reduce_scatter_by(*custom_reduce_scatter_, axis, send, counts, &round.wait)
                                       : reduce_scatter(axis, send, counts, op, &round.wait);
}

// Turns the sums into terms of an average over the copies.
void ParamGroup::divide(Round& round) const {
  double copies = axes_.replicate ? static_cast<double>(axes_.replicate->size()) : 1;
  double divisor = divide_factor_           ? *divide_factor_ / copies
                   : custom_reduce_scatter_ ? static_cast<double>(axes_.shard->size())
                                            : 1;
  if (divisor == 1) return;
  for (auto& part : round.parts) std::for_each(part.begin(), part.end(), [&](auto& local) { local.div_(divisor); });
}

bool ParamGroup::is_unreduced() const {
  if (!syncs_ || std::any_of(members_.begin(), members_.end(), [](auto& member) { return !member.leaf().defined(); }))
    return false;
  // Taken only in begin_reduction, when all ranks take part: after an error, zero_grad must still reach what is left.
  for (size_t i = 0; i < members_.size(); ++i) {
    if (came_[i] || members_[i].has_pending()) return true;
  }
  return false;
}

void ParamGroup::reduce_over_copies(Round& round) {
  if (!axes_.replicate || !syncs_copies_) return;
  for (size_t m = 0; m < round.members.size(); ++m) {
    auto earlier = members_[round.members[m]].take_pending_over_copies();
    for (size_t slot = 0; slot < earlier.size(); ++slot) round.parts[m][slot].add_(earlier[slot]);
    if (!earlier.empty()) used_[round.members[m]] = true;
  }
  round.parts = all_reduce(*axes_.replicate, round.parts, ReduceOp::avg);
}

void ParamGroup::run_reduced_hook(const Round& round) const {
  if (reduced_hook_ && !waits_for_copies()) change_as_flat(round.parts, reduced_hook_);
}

void ParamGroup::finish_reductions() {
  at::NoGradGuard no_grad;
  CauseScope cause(cause_, false);
  for (auto& round : rounds_) {
    if (round.finished) continue;
    if (round.wait) round.wait();
    round.wait = nullptr;
    divide(round);
    reduce_over_copies(round);
    run_reduced_hook(round);
    round.finished = true;
  }
}

void ParamGroup::append_uses(std::vector<Use>& uses) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    uses.push_back(!members_[i].leaf().requires_grad() ? Use::frozen : used_[i] ? Use::used : Use::none);
  }
}

void ParamGroup::write_gradients(const StepReports& reports, size_t first) {
  std::set<size_t> written;
  for (auto& round : rounds_) {
    for (size_t m = 0; m < round.members.size(); ++m) {
      auto i = round.members[m];
      if (!reports.any_used(first + i) && !options_.unused_as_zeros) continue;
      members_[i].add_gradient(round.parts[m], waits_for_copies());
      if (!waits_for_copies()) written.insert(i);
    }
  }
  for (auto i : written) run_post_accumulate_hooks(members_[i].leaf());
  std::fill(used_.begin(), used_.end(), false);
}

void ParamGroup::forget_step() {
  rounds_.clear();
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].fail_gradient();  // of a pass that failed, like the following
    if (came_[i] && syncs_) members_[i].drop_gradient();
    came_[i] = used_[i] = false;
  }
  reshard_after_backward();
}

}  // namespace intarsia
