// The styles that need no hooks: they set on a parameter how the op that uses it prepares its input and output.

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/hooks.h"
#include "intarsia/nn/interposed_modules.h"
#include "intarsia/nn/op_style.h"
#include "intarsia/nn/styles.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

template <class Impl>
Impl* as(const StyleTarget& target) {
  return dynamic_cast<Impl*>(&target.module);
}

std::string place(const StyleTarget& target) {
  return target.path.empty() ? "the module itself" : "\"" + target.path + "\"";
}

void check_placement(const std::optional<Placement>& placement, const char* option, const ParallelStyle& style) {
  if (!placement) return;
  TORCH_CHECK_VALUE(!is_partial(*placement) || std::string(option) == "input_layouts", "[", style.name(), "] ", option,
                    " ", str(*placement), " would leave a pending reduction. Use Replicate() or Shard(dim).");
}

// Checks that a parameter is plain, or already has the layout that the style needs.
void check_parameter(const at::Tensor& parameter, const char* name, const Placement& wanted, const StyleTarget& target,
                     const ParallelStyle& style) {
  if (!is_dtensor(parameter) || MovingParameters::is_open()) return;
  TORCH_CHECK_VALUE(mesh_of(parameter) == target.mesh && placements_of(parameter) == Placements{wanted}, "[",
                    style.name(), "] the ", name, " of ", place(target), " already has the layout ",
                    str(layout_of(parameter)), ", not ", str(Placements{wanted}), " on ", target.mesh.text(),
                    ". Parallelize a module once.");
}

void check_table(const StyleTarget& target, const ParallelStyle& style, const LinearStyleOptions& options,
                 Placement linear, Placement bias, Placement embedding) {
  check_placement(options.input_layouts, "input_layouts", style);
  check_placement(options.output_layouts, "output_layouts", style);
  if (auto* module = as<torch::nn::LinearImpl>(target)) {
    TORCH_CHECK(linear_is_ours(), "[", style.name(),
                "] this program searches LibTorch for functions before this library, so ",
                "torch::nn::Linear cannot be parallelized as it is. Name intarsia before torch when linking.");
    check_parameter(module->weight, "weight", linear, target, style);
    if (module->bias.defined()) check_parameter(module->bias, "bias", bias, target, style);
  } else if (auto* module = as<torch::nn::EmbeddingImpl>(target)) {
    check_parameter(module->weight, "weight", embedding, target, style);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[", style.name(), "] ", place(target), " is a ", target.module.name(),
        ". This style is for torch::nn::Linear and torch::nn::Embedding: name those inside it, ",
        "or derive a style of your own from ParallelStyle.");
  }
}

void distribute(const StyleTarget& target, const at::Tensor& parameter, const Placement& placement) {
  if (parameter.defined()) distribute_parameter(parameter, target.mesh, {placement}, target.src_data_rank);
}

// The placement of a Linear's output features, or of dim `dim` of its output.
Placement columns(const LinearStyleOptions& options, int64_t dim) {
  return options.fused == 1 ? Placement(Shard(dim)) : StridedShard(dim, options.fused);
}

void check_fused(const StyleTarget& target, const ParallelStyle& style, int64_t fused) {
  if (fused == 1) return;
  auto* module = as<torch::nn::LinearImpl>(target);
  TORCH_CHECK_VALUE(module && fused > 1, "[", style.name(), "] fused is ", fused, " for ", place(target), ", a ",
                    target.module.name(), ". Give the number of projections that one torch::nn::Linear computes, ",
                    "such as 3 for q, k and v.");
  auto features = module->weight.size(0), parts = fused * target.mesh.size();
  TORCH_CHECK_VALUE(features % parts == 0, "[", style.name(), "] ", place(target), " has ", features,
                    " output features in ", fused, " blocks, which ", target.mesh.size(),
                    " ranks cannot share evenly. Make them a multiple of ", parts, ".");
}

}  // namespace

void ColwiseParallel::check(const StyleTarget& target) const {
  check_fused(target, *this, options_.fused);
  check_table(target, *this, options_, columns(options_, 0), columns(options_, 0), Shard(1));
}

void ColwiseParallel::apply(const StyleTarget& target) const {
  OpStyle style{target.mesh, options_.input_layouts.value_or(Replicate()), Replicate(),
                options_.output_layouts.value_or(columns(options_, -1)), options_.use_local_output};
  if (auto* module = as<torch::nn::LinearImpl>(target)) {
    distribute(target, module->weight, columns(options_, 0));
    distribute(target, module->bias, columns(options_, 0));
    return set_op_style(module->weight, StyledOp::linear, style);
  }
  auto& table = *as<torch::nn::EmbeddingImpl>(target);
  distribute(target, table.weight, Shard(1));
  set_op_style(table.weight, StyledOp::embedding, style);
}

void RowwiseParallel::check(const StyleTarget& target) const {
  TORCH_CHECK_VALUE(options_.fused == 1, "[RowwiseParallel] fused is ", options_.fused, " for ", place(target),
                    ". Only output features are fused: use ColwiseParallel.");
  check_table(target, *this, options_, Shard(1), Replicate(), Shard(0));
}

void RowwiseParallel::apply(const StyleTarget& target) const {
  OpStyle style{target.mesh, options_.input_layouts.value_or(Shard(-1)), Shard(-1),
                options_.output_layouts.value_or(Replicate()), options_.use_local_output};
  if (auto* module = as<torch::nn::LinearImpl>(target)) {
    distribute(target, module->weight, Shard(1));
    distribute(target, module->bias, Replicate());
    return set_op_style(module->weight, StyledOp::linear, style);
  }
  auto& table = *as<torch::nn::EmbeddingImpl>(target);
  style.desired = Replicate();
  distribute(target, table.weight, Shard(0));
  set_op_style(table.weight, StyledOp::embedding, style);
}

void SequenceParallel::check(const StyleTarget& target) const {
  for (auto& item : target.module.named_parameters()) {
    check_parameter(item.value(), item.key().c_str(), Replicate(), target, *this);
  }
  if (as<torch::nn::LayerNormImpl>(target) || target.module.parameters().empty()) return;
  need_hooks(target.module, "parallelize_module", "SequenceParallel at " + place(target));
}

void SequenceParallel::apply(const StyleTarget& target) const {
  for (auto& parameter : target.module.parameters()) distribute(target, parameter, Replicate());
  Shard sequence(options_.sequence_dim);
  OpStyle style{target.mesh, sequence, sequence, sequence, options_.use_local_output};
  if (auto* hooks = hooks_of(target.module)) {
    hooks->register_forward_pre_hook(
        [style](auto&, HookArguments& inputs) { inputs.tensor(0) = style.prepare(inputs.tensor(0)); });
    hooks->register_forward_hook([style](auto&, HookArguments&, HookArguments& outputs) {
      if (is_dtensor(outputs.tensor(0))) outputs.tensor(0) = style.finish(outputs.tensor(0));
    });
  } else if (auto* norm = as<torch::nn::LayerNormImpl>(target); norm && norm->weight.defined()) {
    set_op_style(norm->weight, StyledOp::norm, style);
  }
}

}  // namespace intarsia
