#include "intarsia/data_parallel/fully_shard/fully_shard.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "intarsia/data_parallel/fully_shard/group_hooks.h"
#include "intarsia/data_parallel/module_names.h"
#include "intarsia/nn/hooks.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

// Each once, in the order of the parameters.
std::vector<std::shared_ptr<ParamGroup>> param_groups_in(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  for (auto& leaf : module.parameters()) {
    auto group = group_of(leaf);
    if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

void check_parameter(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_cpu() || is_rehearsing(), "[fully_shard] \"", name, "\" is on ",
                              tensor.device(), ". Parameters must have values in CPU memory.");
}

// Each parameter that is in no group yet, once; parameters inside other groups show which groups are inner ones.
NamedTensors free_parameters(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options) {
  std::set<const c10::TensorImpl*> seen;
  for (auto& tensor : options.ignored_parameters) seen.insert(tensor.unsafeGetTensorImpl());
  NamedTensors parameters;
  for (size_t m = 0; m < modules.size(); ++m) {
    auto prefix = modules.size() > 1 ? type_name(*modules[m]) + "." : "";
    auto paths = paths_in(*modules[m]);
    for (auto& item : modules[m]->named_parameters()) {
      auto& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (auto inner = group_of(tensor)) {
        inner->set_root(false);
        if (paths.count(inner->module())) inner->set_name(paths[inner->module()]);
      }
      if (watcher_of(tensor)) continue;
      check_parameter(item.key(), tensor);
      parameters.emplace_back(prefix + item.key(), tensor);
    }
  }
  return parameters;
}

// The groups inside the modules that keep their buffers equal, each once: those that were made on this mesh.
std::vector<std::shared_ptr<ParamGroup>> groups_on(const DeviceMesh& mesh,
                                                   const std::vector<torch::nn::Module*>& modules) {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  for (auto* module : modules) {
    for (auto& group : param_groups_in(*module)) {
      if (group->mesh() == mesh) groups.push_back(group);
    }
  }
  return groups;
}

std::optional<int64_t> dim_to_shard(const std::string& name, const at::Tensor& tensor,
                                    const FullyShardOptions& options) {
  auto dim = options.shard_dim ? options.shard_dim(name, tensor) : std::nullopt;
  if (!dim) return tensor.dim() ? std::optional<int64_t>(0) : std::nullopt;
  auto resolved = *dim < 0 ? *dim + tensor.dim() : *dim;
  TORCH_CHECK_VALUE(resolved >= 0 && resolved < tensor.dim(), "[fully_shard] dim ", *dim, " of \"", name,
                    "\" is to be cut, ", "which has the shape ", tensor.sizes(), ". Choose one of its dims.");
  return resolved;
}

void cast_tensors(HookArguments& values, at::ScalarType dtype) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values.is_tensor(i)) continue;
    auto& tensor = values.tensor(i);
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
  }
}

// Hooks gather earlier, free earlier, and can cast. A module without its own parameters has no group.
void hook_module(torch::nn::Module& module, const std::shared_ptr<ParamGroup>& group,
                 const MixedPrecisionPolicy& policy) {
  auto* hooks = hooks_of(module);
  if (policy.output_dtype) need_hooks(module, "fully_shard", "output_dtype");
  if (!hooks) return;
  std::weak_ptr<ParamGroup> weak = group;
  bool is_bare = !group;
  auto* own = &module;  // a clone has copies of the hooks, but not of the group
  hooks->register_forward_pre_hook([=](auto& self, HookArguments& inputs) {
    auto alive = weak.lock();
    if ((!alive && !is_bare) || &self != own) return;
    if (policy.param_dtype && policy.cast_forward_inputs) cast_tensors(inputs, *policy.param_dtype);
    if (!alive) return;
    FullyShardState::of(*alive).need_whole(alive);
    alive->set_pinned(true);
  });
  hooks->register_forward_hook([=](auto& self, HookArguments&, HookArguments& outputs) {
    auto alive = weak.lock();
    if ((!alive && !is_bare) || &self != own) return;
    if (policy.output_dtype) cast_tensors(outputs, *policy.output_dtype);
    if (!alive) return;
    alive->set_pinned(false);
    if (alive->reshards_after_forward()) alive->reshard_after_forward();
  });
  hooks->register_forward_error_hook([weak, own](auto& self) {
    auto alive = weak.lock();
    if (alive && &self == own) alive->set_pinned(false);
  });
}

}  // namespace

void Sharded::unshard() {
  if (group_) FullyShardState::of(*group_).unshard(*group_);
}
void Sharded::begin_unshard() {
  if (group_) FullyShardState::of(*group_).begin_unshard(*group_);
}
void Sharded::reshard() {
  if (group_) group_->need_shards();
}
bool Sharded::is_whole() const { return group_ && group_->is_whole(); }
int64_t Sharded::bytes() const { return group_ ? group_->bytes() : 0; }
void Sharded::set_requires_gradient_sync(bool syncs) {
  if (group_) group_->set_syncs(syncs);
}
void Sharded::set_requires_all_reduce(bool reduces) {
  if (group_) group_->set_syncs_copies(reduces);
}
void Sharded::set_reshard_after_forward(bool reshards) {
  if (group_) group_->set_reshard_after_forward(reshards);
}
void Sharded::set_reshard_after_backward(bool reshards) {
  if (group_) group_->set_reshard_after_backward(reshards);
}
void Sharded::set_gradient_divide_factor(double factor) {
  if (group_) group_->set_divide_factor(factor);
}
void Sharded::set_unused_as_zeros(bool zeros) {
  if (group_) group_->set_unused_as_zeros(zeros);
}
void Sharded::set_forward_prefetch(const std::vector<Sharded>& groups) { set_prefetch(false, groups); }
void Sharded::set_backward_prefetch(const std::vector<Sharded>& groups) { set_prefetch(true, groups); }
void Sharded::set_prefetch(bool in_backward, const std::vector<Sharded>& groups) {
  std::vector<std::weak_ptr<ParamGroup>> named;
  for (auto& one : groups) {
    if (one.group_) named.emplace_back(one.group_);
  }
  if (group_) group_->set_prefetched(in_backward, std::move(named));
}

static bool is_sharded(const torch::nn::Module& module, const WrappedModules& wrapped) {
  auto leaves = module.parameters();
  bool all_in_groups = !leaves.empty();
  for (auto& leaf : leaves) {
    auto group = group_of(leaf);
    if (group && group->module() == &module) return true;
    all_in_groups = all_in_groups && group;
  }
  return all_in_groups && wrapped.has(module);  // modules that explain has wrapped are free again
}

Sharded fully_shard(const std::vector<torch::nn::Module*>& modules, const DeviceMesh& mesh,
                    const FullyShardOptions& options) {
  TORCH_CHECK_VALUE(!modules.empty(), "[fully_shard] the list of modules is empty. Give at least one.");
  for (size_t i = 0; i < modules.size(); ++i) {
    TORCH_CHECK_VALUE(modules[i], "[fully_shard] module ", i, " of the list is null. Give addresses of modules.");
  }
  auto axes = ShardingAxes::of(mesh);  // checks it
  auto& order = CollectiveOrder::of(*axes.all);
  auto& wrapped = FullyShardState::of(order).modules();
  auto name = type_name(*modules[0]);
  for (auto* module : modules) {
    TORCH_CHECK(!is_sharded(*module, wrapped), "[fully_shard] ", type_name(*module), " is sharded already.");
  }
  auto parameters = free_parameters(modules, options);
  NamedTensors buffers;
  for (auto* module : modules) {
    for (auto& item : module->named_buffers()) buffers.emplace_back(item.key(), item.value());
  }
  auto& policy = options.mp_policy;
  std::shared_ptr<ParamGroup> group;
  if (parameters.empty()) {  // they are in other groups, or there are none: on all ranks, or it is an error
    verify_tensors_across_ranks(kShardCause, *axes.all, {}, {}, order.module_count());
    auto inner = options.broadcast_buffers ? groups_on(mesh, modules) : std::vector<std::shared_ptr<ParamGroup>>();
    inner.empty() ? make_per_rank(buffers, mesh.slots().size())
                  : prepare_buffers(*inner[0], buffers, options.init_sync);
  } else {
    Dims dims;
    for (auto& [leaf_name, tensor] : parameters) dims.push_back(dim_to_shard(leaf_name, tensor, options));
    group = make_param_group(modules[0], name, axes, parameters, dims, buffers, options);
  }
  if (options.broadcast_buffers) {
    auto shared = buffer_list(buffers);
    for (auto& one : groups_on(mesh, modules)) one->share_buffers(shared);
  }
  for (auto* module : modules) hook_module(*module, group, policy), wrapped.add(*module);
  return Sharded(std::move(group));
}

Sharded fully_shard(ModuleRef module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  return fully_shard(std::vector<torch::nn::Module*>{&*module}, mesh, options);
}

std::vector<Sharded> groups_in(ConstModuleRef module) {
  std::vector<Sharded> groups;
  for (auto& group : param_groups_in(*module)) groups.emplace_back(group);
  return groups;
}

Sharded sharded_by(ConstModuleRef given) {
  auto& module = *given;
  std::shared_ptr<ParamGroup> found;
  for (auto& group : param_groups_in(module)) {
    if (group->module() == &module) found = group;
  }
  TORCH_CHECK_VALUE(found || FullyShardState::wrapped_somewhere(module), "[sharded_by] ", type_name(module),
                    " is not sharded. Call fully_shard on it first.");
  return Sharded(std::move(found));
}

}  // namespace intarsia
