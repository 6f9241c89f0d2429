// Zero gradients that LibTorch's formulas create.
//
// Note [Gradients of nothing]
// Some formulas return new zeros of the input's shape instead of computing from the gradient: copysign for the sign's
// operand, nextafter for the direction, cat for an empty list entry of one dim. Those zeros are plain tensors. A hook
// on such an op's node turns them into distributed zeros with the layout of the input.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using torch::autograd::variable_list;

// The layout and the form of an op's input; no layout for a plain one.
struct Place {
  const Layout* layout = nullptr;
  std::vector<int64_t> sizes;
};

Place place_of(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return {};
  auto& layout = layout_of(tensor);
  return {layout.with(settled(layout.placements())), tensor.sizes().vec()};
}

struct Distribute final : torch::autograd::FunctionPostHook {
  explicit Distribute(std::vector<Place> places) : places(std::move(places)) {}

  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    auto result = gradients;
    for (size_t i = 0; i < result.size() && i < places.size(); ++i) {
      auto& [layout, sizes] = places[i];
      if (!layout || !result[i].defined() || is_dtensor(result[i])) continue;
      result[i] = zeros(sizes, layout->mesh(), layout->placements(), result[i].options());
    }
    return result;
  }

  std::vector<Place> places;  // one per input of the op
};

// Calls LibTorch's kernel and adds the hook to the node that it creates.
class WithZeros final : public c10::OperatorKernel {
 public:
  explicit WithZeros(c10::SafeKernelFunction usual) : usual_(std::move(usual)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    auto count = op.schema().arguments().size();
    std::vector<Place> places;
    bool makes_zeros = false;
    for (size_t i = stack->size() - count; at::GradMode::is_enabled() && i < stack->size(); ++i) {
      auto& arg = (*stack)[i];
      if (arg.isTensor()) places.push_back(place_of(arg.toTensor())), makes_zeros = true;
      if (!arg.isTensorList()) continue;
      for (const at::Tensor& tensor : arg.toTensorList()) {
        places.push_back(place_of(tensor));
        makes_zeros = makes_zeros || tensor.sizes() == at::IntArrayRef({0});
      }
    }
    usual_.callBoxed(op, keys, stack);
    if (!makes_zeros || !stack->back().toTensor().requires_grad()) return;
    auto node = stack->back().toTensor().grad_fn();
    if (node) node->add_post_hook(std::make_unique<Distribute>(std::move(places)));
  }

 private:
  c10::SafeKernelFunction usual_;
};

torch::CppFunction with_zeros(const c10::OperatorName& name) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
  auto kernel = std::make_unique<WithZeros>(op.getComputedKernelForDispatchKey(kGeneralAutogradKey));
  return torch::CppFunction::makeFromBoxedFunctor(std::move(kernel));
}

}  // namespace

void add_zero_gradients(RuleTable& t) {
  const c10::OperatorName names[] = {{"aten::copysign", "Tensor"},
                                     {"aten::copysign_", "Tensor"},
                                     {"aten::nextafter", ""},
                                     {"aten::nextafter_", ""},
                                     {"aten::cat", ""}};
  for (auto& name : names) t.gradient_kernel(c10::toString(name), [name] { return with_zeros(name); });
}

}  // namespace intarsia
