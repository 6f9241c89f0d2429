#include "intarsia/data_parallel/fully_shard/param_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

std::string phase_text(int64_t phase) { return phase == ParamGroup::kGather ? "gathers it" : "reduces its gradients"; }

}  // namespace

ParamGroup::ParamGroup(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
                       const Dims& dims, const FullyShardOptions& options)
    : module_(module),
      name_(std::move(name)),
      axes_(axes),
      collective_order_(CollectiveOrder::of(*axes.all)),
      options_(options),
      cause_(cause_text(kShardCause, name_)),
      came_(parameters.size()),
      used_(parameters.size()) {
  options_.ignored_parameters.clear();
  options_.shard_dim = nullptr;
  CauseScope cause(kShardCause, false);
  auto others = verify_tensors_across_ranks(kShardCause, *axes_.all, parameters, {}, collective_order_.module_count());
  id_ = collective_order_.open(name_, phase_text, others);
  members_.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& [leaf_name, leaf] = parameters[i];
    auto dtype = leaf.is_floating_point() ? options_.mp_policy.param_dtype : std::nullopt;
    members_.emplace_back(leaf_name, leaf, axes_, dims.at(i), dtype);
  }
  if (options_.reshard_to) post_forward_.emplace(axes_, *options_.reshard_to);
}

ParamGroup::~ParamGroup() { collective_order_.close(id_); }

void ParamGroup::set_name(const std::string& name) {
  name_ = name;
  cause_ = cause_text(kShardCause, name_);
  collective_order_.rename(id_, name);
}

std::vector<std::shared_ptr<ParamGroup>> ParamGroup::prefetched(bool in_backward) const {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  for (auto& weak : prefetched_[in_backward]) {
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

int64_t ParamGroup::bytes() const {
  int64_t sum = 0;
  for (auto& member : members_) sum += member.bytes_of_whole();
  return sum;
}

// --- whole and shards

void ParamGroup::check_has_data() const {
  if (is_rehearsing()) return;
  for (auto& member : members_) {
    TORCH_CHECK(member.has_data(), "[fully_shard] \"", member.name(), "\" of ", name_,
                " is on meta: it has no values yet. Give ", "them before the model is used.");
  }
}

void ParamGroup::begin_unshard() {
  at::NoGradGuard no_grad;
  CauseScope cause(cause_, false);
  begun_ = true;
  gathered_version_ = version();
  try {
    begin_gathering();
  } catch (...) {  // nothing will arrive: the next one starts anew, with the other ranks
    begun_ = false;
    gathering_ = nullptr;
    incoming_.clear();
    throw;
  }
}

void ParamGroup::begin_gathering() {
  from_post_forward_ = post_forward_ && post_forward_->has(gathered_version_);
  if (from_post_forward_) return post_forward_->gather(members_, incoming_, &gathering_);
  ShardsList outgoing;
  CountsList counts;
  incoming_.clear();
  for (auto& member : members_) {
    outgoing.push_back(member.outgoing());
    incoming_.push_back(member.incoming());
    counts.push_back(member.counts());
  }
  if (custom_all_gather_)
    return all_gather_by(*custom_all_gather_, *axes_.shard, outgoing, incoming_, counts, &gathering_);
  all_gather(*axes_.shard, outgoing, incoming_, counts, &gathering_);
}

void ParamGroup::wait_for_gathering() {
  auto wait = std::exchange(gathering_, nullptr);
  begun_ = false;  // also if it fails
  if (wait) wait();
}

uint64_t ParamGroup::version() const {
  return std::accumulate(members_.begin(), members_.end(), uint64_t{0},
                         [](auto sum, auto& one) { return sum + one.version(); });
}

void ParamGroup::show(bool whole) {
  if (std::exchange(shown_, whole) == whole) return;
  at::NoGradGuard no_grad;
  for (auto& member : members_) whole ? member.show_whole() : member.show_shards();
}

void ParamGroup::set_pinned(bool pinned) {
  pinned_ = pinned;
  show(whole_ && (asked_ || pinned_));
}

void ParamGroup::reshard_if_written() {
  if (whole_ && version() != gathered_version_) free_whole();
}

void ParamGroup::show_whole() {
  asked_ = true;
  show(true);
}

void ParamGroup::show_if_asked() { show(asked_ || pinned_); }

void ParamGroup::whole_was_written(size_t index) {
  members_[index].take_written_whole();
  gathered_version_ = version();
}

bool ParamGroup::finish_unshard() {
  at::NoGradGuard no_grad;
  wait_for_gathering();
  if (version() != gathered_version_) return false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!from_post_forward_) members_[i].arrived(incoming_[i]);
  }
  incoming_.clear();
  if (post_forward_) post_forward_->drop();
  whole_ = true;
  return true;
}

void ParamGroup::reshard() {
  asked_ = false;
  free_whole();
}

void ParamGroup::free_whole() {
  if (!whole_ && !begun_) return;
  at::NoGradGuard no_grad;
  if (begun_) wait_for_gathering();
  incoming_.clear();
  show(false);
  for (auto& member : members_) member.free_whole();
  whole_ = false;
}

void ParamGroup::reshard_after_forward() {
  if (is_in_backward()) return;  // it recomputes
  if (post_forward_ && whole_) post_forward_->keep(members_, gathered_version_);
  reshard();
}

void ParamGroup::reshard_after_backward() {
  if (reshard_after_backward_ && !is_held()) need_shards();
}

bool ParamGroup::is_frozen() const {
  return std::none_of(members_.begin(), members_.end(), [](auto& member) { return member.leaf().requires_grad(); });
}

void ParamGroup::set_divide_factor(std::optional<double> factor) {
  divide_factor_ = factor;
  auto ranks = static_cast<double>(axes_.shard->size() * (axes_.replicate ? axes_.replicate->size() : 1));
  for (auto& member : members_) member.set_average_scale(factor ? ranks / *factor : 1);
}

bool ParamGroup::hold(bool held) {
  holds_ += held ? 1 : -1;
  return holds_ > 0;
}

void ParamGroup::need_shards() {
  pinned_ = false;
  if (post_forward_) post_forward_->drop();
  reshard();
}

bool ParamGroup::lies_on(const DeviceMesh& mesh) const {
  return std::any_of(members_.begin(), members_.end(), [&](auto& member) { return mesh_of(member.sharded()) == mesh; });
}

}  // namespace intarsia
