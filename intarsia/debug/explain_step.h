#pragma once
// Predicts one training step of a parallel model without running it: layouts of parameters and activations, what is
// sent, and the memory of a rank.

#include <concepts>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/debug/explain.h"
#include "intarsia/debug/module_trace.h"
#include "intarsia/nn/hook_arguments.h"
#include "intarsia/nn/parallelize_module.h"

namespace intarsia {

struct StepExplanation {
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    std::string layout, gradient;  // placements; "plain" if the plan leaves it, "none" without a gradient
    int64_t local_bytes;           // of the rank that has most
  };
  struct Activation {
    std::string module, op;  // the op's name is followed by that of the parameter it uses
    std::vector<int64_t> shape;
    std::string layout;  // placements; "local" for a plain tensor of each rank, with the shape of the first rank's
  };
  std::string mesh;
  std::vector<Parameter> parameters;
  std::vector<Activation> activations;
  std::vector<ModuleTrace::Entry> collectives;  // in order; update: what the optimizer gathers
  std::vector<size_t> before;                   // per collective: how many activations there were

  // Bytes of tensors on the first rank, which has most; without the work space of engines and ops.
  struct Memory {
    int64_t at_rest = 0;  // before the step: parameters and buffers, and what replicate keeps
    int64_t peak = 0;     // the most at a time, in forward or backward
    std::string module;   // where that is
    Phase phase = Phase::forward;
  } memory;

  int64_t bytes(Phase phase) const;
  int64_t count(Phase phase) const;
  std::string text() const;
};

// The loss of one step, from tensors that have shapes but no data.
using TrainingStep = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

// Makes a module parallel: parallelize_module, fully_shard, replicate, or several of them, on the given mesh or slices
// of it.
using MakeParallel = std::function<void(const DeviceMesh& mesh)>;

// `step` calls the module as it is after `make`, on tensors without data; an input without placements is a plain tensor
// of each rank. Nothing is computed or sent, and afterwards the module is as it was. The step cannot read values. With
// fully_shard or replicate it runs twice, and the result is that of the second run: by then, groups know the order in
// which they are used.
//   explain(*model, mesh, [&](auto& mesh) { fully_shard(*model, mesh["dp"]); }, {{{2, 16}, {}, torch::kLong}},
//           [&](auto& in) { return model(in[0]).sum(); }).text();
StepExplanation explain(ModuleRef module, const DeviceMesh& mesh, const MakeParallel& make,
                        const std::vector<Imagined>& inputs, const TrainingStep& step);

// The same after parallelize_module with this plan.
//   explain(*model, mesh, plan, {{{2, 16}, {}, torch::kLong}}, [&](auto& in) { return model(in[0]).sum(); }).text();
StepExplanation explain(ModuleRef module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const std::vector<Imagined>& inputs, const TrainingStep& step);

// The sum of all results that have gradients.
at::Tensor sum_of(const HookArguments& results);

template <class Impl, class C, class R, class... A, size_t... I>
at::Tensor sum_of_forward(Impl& module, R (C::*)(A...), const std::vector<at::Tensor>& inputs,
                          std::index_sequence<I...>) {
  static_assert((std::is_convertible_v<at::Tensor, A> && ...), "forward takes more than tensors: give a TrainingStep");
  TORCH_CHECK_VALUE(inputs.size() == sizeof...(A), "[explain] ", inputs.size(), " inputs given, but forward takes ",
                    sizeof...(A), ". Give a shape for each.");
  auto result = module.forward(inputs[I]...);
  HookArguments results;
  results.add(result);
  return sum_of(results);
}
template <class Impl, class C, class R, class... A>
at::Tensor sum_of_forward(Impl& module, R (C::*forward)(A...), const std::vector<at::Tensor>& inputs) {
  return sum_of_forward(module, forward, inputs, std::index_sequence_for<A...>());
}
template <class Impl, class C, class R, class... A>
at::Tensor sum_of_forward(Impl& module, R (C::*forward)(A...) const, const std::vector<at::Tensor>& inputs) {
  return sum_of_forward(module, reinterpret_cast<R (C::*)(A...)>(forward), inputs, std::index_sequence_for<A...>());
}

// The step of a module whose forward takes tensors; the loss is the sum of its results.
template <class Impl>
TrainingStep forward_and_sum(Impl& module) {
  return [&module](const std::vector<at::Tensor>& given) {
    if constexpr (requires { &Impl::forward; }) {
      return sum_of_forward(module, &Impl::forward, given);
    } else {  // a template, as that of Sequential
      TORCH_CHECK_VALUE(given.size() == 1, "[explain] ", given.size(), " inputs given. Give one, or a TrainingStep.");
      return at::sum(module.forward(given[0]));
    }
  };
}

// The same for modules whose forward is the step, given as themselves, by a holder or by a shared pointer.
//   explain(model, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}}, {{{12, 10}}}).text();
template <std::derived_from<torch::nn::Module> Impl>
StepExplanation explain(Impl& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const std::vector<Imagined>& inputs) {
  return explain(ModuleRef(module), mesh, plan, inputs, forward_and_sum(module));
}
template <std::derived_from<torch::nn::Module> Impl>
StepExplanation explain(Impl& module, const DeviceMesh& mesh, const MakeParallel& make,
                        const std::vector<Imagined>& inputs) {
  return explain(ModuleRef(module), mesh, make, inputs, forward_and_sum(module));
}
template <ModuleOwner Holder>
StepExplanation explain(const Holder& holder, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const std::vector<Imagined>& inputs) {
  return explain(*ModuleRef::address_in(holder), mesh, plan, inputs);
}
template <ModuleOwner Holder>
StepExplanation explain(const Holder& holder, const DeviceMesh& mesh, const MakeParallel& make,
                        const std::vector<Imagined>& inputs) {
  return explain(*ModuleRef::address_in(holder), mesh, make, inputs);
}

// On the mesh of the innermost MeshScope.
template <ModuleOwner Holder>
StepExplanation explain(const Holder& holder, const ParallelPlan& plan, const std::vector<Imagined>& inputs) {
  return explain(holder, current_mesh("explain"), plan, inputs);
}

}  // namespace intarsia
