#include "intarsia/data_parallel/fully_shard/group_hooks.h"

#include <utility>

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/foreign.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {

GroupHooks::GroupHooks(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
                       const Dims& dims, const FullyShardOptions& options)
    : group_(module, std::move(name), axes, parameters, dims, options), state_(FullyShardState::of(group_.order())) {}

GroupHooks::~GroupHooks() {
  for (size_t i = 0; i < group_.members().size(); ++i) disown_memories(i);
  state_.remove(group_);
}

void GroupHooks::own_memories(size_t index) {
  auto& member = group_.members()[index];
  for (auto& memory : member.memories()) own_storage(memory.storage(), weak_from_this(), index, true);
  for (auto& shard : shards_of(member.sharded())) own_storage(shard.storage(), weak_from_this(), index, false);
}

void GroupHooks::disown_memories(size_t index) const {
  auto& member = group_.members()[index];
  for (auto& memory : member.memories()) disown_storage(memory.storage());
  for (auto& shard : body_of(member.sharded()).last_known_shards()) disown_storage(shard.storage());
}

void GroupHooks::attach() {
  at::NoGradGuard no_grad;
  state_.add(group());
  for (size_t i = 0; i < group_.members().size(); ++i) {
    own_memories(i);
    auto& member = group_.member(i);
    member.show_shards();
    member.free_whole();
    for (auto* gradient : member.layouts_of_gradients()) let_plain_state_follow(gradient, &layout_of(member.sharded()));
    watch_leaf(member.leaf(), shared_from_this(), i);
    hold_hooks(member.leaf(), /*tensor_hooks=*/true);
  }
}

bool GroupHooks::take_data(size_t index, const at::Tensor& leaf, const at::Tensor& data) {
  check_no_wrapper(data, "set_data", "the data of a parameter");
  group_.free_whole();
  disown_memories(index);
  group_.member(index).replace(data);
  own_memories(index);
  state_.show_again(group_);
  return true;
}

std::shared_ptr<ParamGroup> group_of(const at::Tensor& leaf) {
  auto hooks = std::dynamic_pointer_cast<GroupHooks>(watcher_of(leaf));
  return hooks ? hooks->group() : nullptr;
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

void prepare_buffers(const ParamGroup& group, const NamedTensors& buffers, bool init_sync) {
  auto& mesh = group.mesh();
  WorldScope world(mesh.world());
  std::vector<at::Tensor> shared;
  add_shared(buffers, shared);
  if (init_sync) take_first_values(mesh, shared);
  make_plain(buffers, mesh);
  make_per_rank(buffers, mesh.slots().size());
}

std::shared_ptr<ParamGroup> make_param_group(const void* module, const std::string& name, const ShardingAxes& axes,
                                             const NamedTensors& parameters, const Dims& dims,
                                             const NamedTensors& buffers, const FullyShardOptions& options) {
  auto& mesh = axes.mesh;
  WorldScope world(mesh.world());  // for meshes of more axes
  c10::InferenceMode off(false);   // parameters made here are trained
  for (auto& [leaf_name, tensor] : parameters)
    layouts_of_param(leaf_name, axes, tensor, std::nullopt);  // an error before anything is sent
  if (options.init_sync) {
    std::vector<at::Tensor> tensors;
    for (auto& [leaf_name, tensor] : parameters) {
      if (!is_cut_along(tensor, axes) && !tensor.is_meta() && !is_rehearsing()) tensors.push_back(tensor);
    }
    if (options.broadcast_buffers) add_shared(buffers, tensors);
    take_first_values(mesh, tensors);
  }
  if (!axes.on_full_mesh) make_plain(buffers, mesh);
  make_per_rank(buffers, mesh.slots().size());
  auto hooks = std::make_shared<GroupHooks>(module, name, axes, parameters, dims, options);
  auto group = hooks->group();
  hooks->attach();
  return group;
}

}  // namespace intarsia
