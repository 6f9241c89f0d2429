#include "intarsia/nn/distribute_module.h"

#include <set>
#include <vector>

#include <torch/nn/module.h>

#include "intarsia/nn/hooks.h"
#include "intarsia/nn/rollback.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

thread_local MovingParameters* moving_ = nullptr;

// Parents first. A module that is used in two places is visited once.
void visit(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh, const PartitionFn& partition_fn,
           std::set<const torch::nn::Module*>& seen) {
  if (!seen.insert(&module).second) return;
  partition_fn(name, module, mesh);
  for (auto& child : module.named_children()) {
    visit(name.empty() ? child.key() : name + "." + child.key(), *child.value(), mesh, partition_fn, seen);
  }
}

}  // namespace

MovingParameters::MovingParameters() : outer_(moving_) { moving_ = this; }
MovingParameters::~MovingParameters() { moving_ = outer_; }
bool MovingParameters::is_open() { return moving_ != nullptr; }
bool MovingParameters::has_moved(const at::Tensor& tensor) const {
  return moved_.count(tensor.unsafeGetTensorImpl()) > 0;
}

void distribute_parameter(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                          std::optional<int64_t> src_data_rank) {
  TORCH_CHECK_VALUE(tensor.defined(), "[distribute_parameter] the tensor is undefined. Give it a value first.");
  TORCH_CHECK_VALUE(tensor.is_leaf(), "[distribute_parameter] the tensor of shape ", tensor.sizes(),
                    " was computed from others. Distribute those, or call distribute_tensor on its detach().");
  if (moving_) moving_->moved_.insert(tensor.unsafeGetTensorImpl());
  if (moving_ && is_dtensor(tensor) && mesh_of(tensor) == mesh) {
    if (placements_of(tensor) != placements) tensor.set_data(redistribute(tensor.detach(), placements));
    return;
  }
  auto data = distribute_tensor(tensor.detach(), mesh, placements, src_data_rank);
  if (is_dtensor(tensor)) return;  // distribute_tensor has checked its layout
  auto grad = tensor.grad();
  if (grad.defined()) grad = distribute_tensor(grad.detach(), mesh, placements, src_data_rank);
  tensor.set_data(data);
  tensor.mutable_grad() = grad;
}

void distribute_parameter(ConstModuleRef module, const std::string& name, const DeviceMesh& mesh,
                          const Placements& placements, std::optional<int64_t> src_data_rank) {
  std::string known;
  for (auto& tensors : {module->named_parameters(), module->named_buffers()}) {
    for (auto& item : tensors) {
      if (item.key() == name) return distribute_parameter(item.value(), mesh, placements, src_data_rank);
      known += (known.empty() ? "" : ", ") + item.key();
    }
  }
  TORCH_CHECK_VALUE(false, "[distribute_parameter] ", module->name(), " has no parameter or buffer \"", name,
                    "\". It has ", known.empty() ? "none" : known, ".");
}

void distribute_module(ModuleRef module, const DeviceMesh& mesh, const PartitionFn& partition_fn,
                       std::optional<int64_t> src_data_rank) {
  distribute_module(module, mesh, partition_fn, nullptr, nullptr, src_data_rank);
}

void distribute_module(ModuleRef given, const DeviceMesh& mesh, const PartitionFn& partition_fn,
                       const InputFn& input_fn, const OutputFn& output_fn, std::optional<int64_t> src_data_rank) {
  auto& module = *given;
  if (input_fn) need_hooks(module, "distribute_module", "input_fn");
  if (output_fn) need_hooks(module, "distribute_module", "output_fn");
  check_not_sharded("distribute_module", module);
  Rollback rollback(module);
  std::set<const torch::nn::Module*> seen;
  if (partition_fn) visit("", module, mesh, partition_fn, seen);
  for (auto& tensor : tensors_of(module)) {
    if (is_dtensor(tensor)) continue;
    distribute_parameter(tensor, mesh, Placements(mesh.ndim(), Replicate()), src_data_rank);
  }
  if (input_fn) {
    hooks_of(module)->register_forward_pre_hook(
        [=](auto& self, HookArguments& inputs) { input_fn(self, inputs, mesh); });
  }
  if (output_fn) {
    hooks_of(module)->register_forward_hook(
        [=](auto& self, HookArguments&, HookArguments& outputs) { output_fn(self, outputs, mesh); });
  }
  rollback.complete();
}

}  // namespace intarsia
