#pragma once
// Turns the parameters and buffers of an existing torch::nn module into distributed tensors, in place.

#include <functional>
#include <optional>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"
#include "intarsia/nn/module_ref.h"

namespace torch::nn {
class Module;
}

namespace intarsia {

// Distributes `tensor` (a parameter, a buffer, or any leaf) under its own handle: members, dictionaries and optimizers
// that hold it see the change. Its gradient, if it has one, is distributed with it. src_data_rank: see
// distribute_tensor. A tensor that already has this layout is left alone.
void distribute_parameter(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                          std::optional<int64_t> src_data_rank = 0);

// The same for the parameter or buffer `name` of a module: "weight", or "0.weight" in a submodule.
void distribute_parameter(ConstModuleRef module, const std::string& name, const DeviceMesh& mesh,
                          const Placements& placements, std::optional<int64_t> src_data_rank = 0);

// While it lives, on this thread, distribute_parameter and its callers (styles) may redistribute a parameter that has
// another layout on its mesh. Otherwise that is an error.
class MovingParameters {
 public:
  MovingParameters();
  ~MovingParameters();
  MovingParameters(const MovingParameters&) = delete;
  MovingParameters& operator=(const MovingParameters&) = delete;

  static bool is_open();
  bool has_moved(const at::Tensor& tensor) const;  // or was left, because it had that layout

 private:
  friend void distribute_parameter(const at::Tensor&, const DeviceMesh&, const Placements&, std::optional<int64_t>);
  std::set<const c10::TensorImpl*> moved_;
  MovingParameters* outer_;
};

// Called for the module itself (with the name "") and then for every submodule in it ("fc1", "layers.0").
using PartitionFn = std::function<void(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh)>;

// Distributes all parameters and buffers: `partition_fn` distributes some of them (with distribute_parameter), the
// others are replicated. Distributed ones stay as they are. If anything fails, partition_fn included, every tensor is
// as it was before the call.
//   distribute_module(*model, mesh, [](auto& name, auto& module, auto& mesh) {
//     if (name == "fc1") distribute_parameter(module, "weight", mesh, {Shard(0)});
//   });
// State that an optimizer has already built up (momenta) is not converted: distribute before the first step.
void distribute_module(ModuleRef module, const DeviceMesh& mesh, const PartitionFn& partition_fn = nullptr,
                       std::optional<int64_t> src_data_rank = 0);

// The same for a module with hooks (see hooks.h), whose arguments and results are prepared in every forward. Both
// functions may replace values in place; either may be null.
class HookArguments;
using InputFn = std::function<void(torch::nn::Module& module, HookArguments& inputs, const DeviceMesh& mesh)>;
using OutputFn = std::function<void(torch::nn::Module& module, HookArguments& outputs, const DeviceMesh& mesh)>;
void distribute_module(ModuleRef module, const DeviceMesh& mesh, const PartitionFn& partition_fn,
                       const InputFn& input_fn, const OutputFn& output_fn, std::optional<int64_t> src_data_rank = 0);

}  // namespace intarsia
