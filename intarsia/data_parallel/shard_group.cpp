#include "intarsia/data_parallel/shard_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/comm/trace.h"
#include "intarsia/data_parallel/gradients.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

// Copies along the axis of the mesh, and shards along one of a single rank.
ShardingAxes replicated_axes(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1 && !mesh.slots().empty(), "[replicate] expects a mesh of one axis that this process takes ",
                    "part in, not ", mesh.text(), ". Take a slice of it by name.");
  DeviceMesh grid(mesh.device_type(), {mesh.group_count(), mesh.size(), 1}, mesh.ranks().vec());
  return {mesh, 0, &Axis::of(grid, 2), &Axis::of(mesh, 0), &Axis::whole(mesh)};
}

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0 && !is_in_hook_of_program(); }

}  // namespace

ShardGroup::ShardGroup(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
                       const ShardGroupOptions& options)
    : module_(module), name_(std::move(name)), axes_(axes), lane_(Lane::of(*axes.all)), order_(ShardOrder::of(lane_)),
      options_(options), cause_(cause_text(kShardCause, name_)), came_(parameters.size()), used_(parameters.size()) {
  CauseScope cause(kShardCause, false);
  auto others = agree_on_tensors(kShardCause, *axes_.all, parameters, {}, lane_.user_count());
  user_ = lane_.open(name_, others);
  members_.reserve(parameters.size());
  for (auto& [leaf_name, leaf] : parameters) {
    auto dtype = leaf.is_floating_point() ? options_.param_dtype : std::nullopt;
    members_.emplace_back(leaf_name, leaf, axes_, options_.dim_of(leaf_name, leaf), dtype);
  }
  if (options_.reshard_to) kept_.emplace(axes_, *options_.reshard_to);
}

ShardGroup::~ShardGroup() {
  for (auto& member : members_) disown_memories(member);
  order_.gone(this);
  lane_.close(user_);
}

void ShardGroup::own_memories(size_t index) {
  auto& member = members_[index];
  for (auto& memory : member.memories()) own_storage(memory.storage(), weak_from_this(), index, true);
  for (auto& shard : shards_of(member.sharded())) own_storage(shard.storage(), weak_from_this(), index, false);
}

void ShardGroup::disown_memories(const TwoValues& member) const {
  for (auto& memory : member.memories()) disown_storage(memory.storage());
  for (auto& shard : body_of(member.sharded()).last_known_shards()) disown_storage(shard.storage());
}

void ShardGroup::start() {
  at::NoGradGuard no_grad;
  order_.came(this);
  for (size_t i = 0; i < members_.size(); ++i) {
    own_memories(i);
    members_[i].show_shards();
    members_[i].free_whole();
    let_plain_state_follow(&layout_of(members_[i].sharded()));
    watch_leaf(members_[i].leaf(), shared_from_this(), i);
    hold_hooks(members_[i].leaf(), /*tensor_hooks=*/true);
  }
}

void ShardGroup::set_name(const std::string& name) {
  name_ = name;
  cause_ = cause_text(kShardCause, name_);
  lane_.rename(user_, name);
}

std::vector<std::shared_ptr<ShardGroup>> ShardGroup::prefetched(bool in_backward) const {
  std::vector<std::shared_ptr<ShardGroup>> groups;
  for (auto& weak : prefetched_[in_backward]) {
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

int64_t ShardGroup::bytes() const {
  int64_t sum = 0;
  for (auto& member : members_) sum += member.bytes_of_whole();
  return sum;
}

// --- whole and shards

void ShardGroup::check_has_data() const {
  if (is_rehearsing()) return;
  for (auto& member : members_) {
    TORCH_CHECK(member.has_data(), "[fully_shard] \"", member.name(), "\" of ", name_, " is on meta: it has no values yet. Give ",
                "them before the model is used.");
  }
}

void ShardGroup::begin_unshard() {
  if (whole_ || begun_) return;
  check_has_data();
  at::NoGradGuard no_grad;
  if (axes_.shard->size() > 1) order_.word(user_, kGather);
  CauseScope cause(cause_, false);
  begun_ = true;
  gathered_version_ = version();
  from_kept_ = kept_ && kept_->has(gathered_version_);
  if (from_kept_) return kept_->gather(members_, incoming_, &gathering_);
  ShardsList outgoing;
  CountsList counts;
  incoming_.clear();
  for (auto& member : members_) {
    outgoing.push_back(member.outgoing());
    incoming_.push_back(member.incoming());
    counts.push_back(member.counts());
  }
  if (own_gather_) return all_gather_by(*own_gather_, *axes_.shard, outgoing, incoming_, counts, &gathering_);
  all_gather(*axes_.shard, outgoing, incoming_, counts, &gathering_);
}

void ShardGroup::wait_for_gathering() {
  if (gathering_) gathering_();
  gathering_ = nullptr;
  begun_ = false;
}

uint64_t ShardGroup::version() const {
  return std::accumulate(members_.begin(), members_.end(), uint64_t{0}, [](auto sum, auto& one) { return sum + one.version(); });
}

void ShardGroup::show(bool whole) {
  if (std::exchange(shown_, whole) == whole) return;
  at::NoGradGuard no_grad;
  for (auto& member : members_) whole ? member.show_whole() : member.show_shards();
}

void ShardGroup::set_pinned(bool pinned) {
  pinned_ = pinned;
  show(whole_ && (asked_ || pinned_));
}

void ShardGroup::unshard() {
  if (whole_ && version() != gathered_version_) reshard();  // shards were written since
  gather();
  asked_ = true;
  show(true);
}

void ShardGroup::gather() {
  if (whole_) return;
  at::NoGradGuard no_grad;
  do {  // shards may have been written since they were sent
    begin_unshard();
    wait_for_gathering();
  } while (version() != gathered_version_);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!from_kept_) members_[i].arrived(incoming_[i]);
  }
  incoming_.clear();
  if (kept_) kept_->drop();
  whole_ = true;
  order_.gathered(*this, is_in_backward());
}

void ShardGroup::reshard() {
  if (!whole_ && !begun_) return;
  at::NoGradGuard no_grad;
  if (begun_) wait_for_gathering();
  incoming_.clear();
  asked_ = false;
  show(false);
  for (auto& member : members_) member.free_whole();
  whole_ = false;
}

void ShardGroup::reshard_after_forward() {
  if (is_in_backward()) return;
  if (kept_ && whole_) kept_->keep(members_, gathered_version_);
  reshard();
}

void ShardGroup::reshard_after_backward() {
  if (reshard_after_backward_ && !is_held()) need_shards();
}

bool ShardGroup::is_frozen() const {
  return std::none_of(members_.begin(), members_.end(), [](auto& member) { return member.leaf().requires_grad(); });
}

void ShardGroup::set_divide_factor(std::optional<double> factor) {
  divide_factor_ = factor;
  auto ranks = static_cast<double>(axes_.shard->size() * (axes_.replicate ? axes_.replicate->size() : 1));
  for (auto& member : members_) member.set_average_scale(factor ? ranks / *factor : 1);
}

void ShardGroup::hold(bool held) {
  holds_ += held ? 1 : -1;
  if (!holds_) order_.released(*this);
}

void ShardGroup::take_value(const at::Tensor& leaf, const at::Tensor& value) {
  need_shards();
  for (auto& member : members_) {
    if (!member.leaf().is_same(leaf)) continue;
    disown_memories(member);
    member.replace(value);
    own_memories(&member - members_.data());
  }
}

void ShardGroup::need_whole() {
  bool asked = asked_;
  if (is_in_backward()) {
    order_.used_in_backward(shared_from_this());
  } else {
    order_.used(*this);
    if (whole_ && version() != gathered_version_) reshard();  // shards were written by a handle that we do not know
  }
  gather();
  asked_ = asked;
  show(asked_ || pinned_);
}

void ShardGroup::need_shards() {
  pinned_ = false;
  if (kept_) kept_->drop();
  reshard();
}

bool ShardGroup::lies_on(const DeviceMesh& mesh) const {
  return std::any_of(members_.begin(), members_.end(), [&](auto& member) { return mesh_of(member.sharded()) == mesh; });
}

// All ranks start with the values of the first.
static void take_first_values(const DeviceMesh& mesh, const std::vector<at::Tensor>& tensors) {
  CauseScope cause(kShardCause, false);
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) broadcast_tensors(mesh, tensors, 0, nullptr, axis);
}

static void add_shared(const NamedTensors& buffers, std::vector<at::Tensor>& tensors) {
  for (auto& [name, buffer] : buffers) {
    if (!is_dtensor(buffer) && !buffer.is_meta() && !is_rehearsing()) tensors.push_back(buffer);
  }
}

static void make_plain(const NamedTensors& buffers, const DeviceMesh& mesh) {
  for (auto& [name, buffer] : buffers) {
    if (lies_on(buffer, mesh)) buffer.set_data(full_tensor(buffer.detach()));  // activations are plain
  }
}

void add_buffers(ShardGroup& group, const NamedTensors& buffers, bool init_sync) {
  auto& mesh = group.mesh();
  WorldScope world(mesh.world());
  std::vector<at::Tensor> shared;
  add_shared(buffers, shared);
  if (init_sync) take_first_values(mesh, shared);
  make_plain(buffers, mesh);
  make_per_rank(buffers, mesh.slots().size());
  group.share_buffers(buffers);
}

std::shared_ptr<ShardGroup> make_shard_group(const void* module, const std::string& name, const DeviceMesh& mesh,
                                             const NamedTensors& parameters, const NamedTensors& buffers,
                                             const ShardGroupOptions& options, bool init_sync) {
  WorldScope world(mesh.world());  // for meshes of more axes
  c10::InferenceMode off(false);   // what is made here is trained
  auto axes = options.replicated ? replicated_axes(mesh) : ShardingAxes::of(mesh);
  axes.on_full_mesh = options.on_full_mesh;
  for (auto& [leaf_name, tensor] : parameters) at_rest(leaf_name, axes, tensor, std::nullopt);  // an error before anything is sent
  if (init_sync) {
    std::vector<at::Tensor> tensors;
    for (auto& [leaf_name, tensor] : parameters) {
      if (!is_cut_along(tensor, axes) && !tensor.is_meta() && !is_rehearsing()) tensors.push_back(tensor);
    }
    if (options.broadcast_buffers) add_shared(buffers, tensors);
    take_first_values(mesh, tensors);
  }
  if (!options.on_full_mesh) make_plain(buffers, mesh);
  make_per_rank(buffers, mesh.slots().size());
  auto group = std::make_shared<ShardGroup>(module, name, axes, parameters, options);
  if (options.broadcast_buffers) group->share_buffers(buffers);
  group->start();
  return group;
}

}  // namespace intarsia
