#include "intarsia/nn/backward_watch.h"

#include <functional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SeenGradients final : torch::CustomClassHolder {
  explicit SeenGradients(std::function<Gradients(Gradients)> call) : see(std::move(call)) {}
  std::function<Gradients(Gradients)> see;
};

// Returns the same tensors; in backward, `seen` maps the gradients.
struct Passage : torch::autograd::Function<Passage> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<SeenGradients> seen, at::TensorList tensors) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["seen"] = c10::IValue::make_capsule(seen);
    variable_list same;
    for (auto& tensor : tensors) same.push_back(tensor.view_as(tensor));
    return same;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto seen = c10::static_intrusive_pointer_cast<SeenGradients>(ctx->saved_data["seen"].toCapsule());
    auto result = seen->see(std::move(gradients));
    result.insert(result.begin(), at::Tensor());  // of `seen` itself
    return result;
  }
};

// Passes the tensors that need a gradient through a node; `see` gets a list of all tensors, undefined for the others.
// Returns the number of tensors, and whether any passes.
std::pair<size_t, bool> pass(HookArguments& values, const std::function<Gradients(Gradients)>& see) {
  std::vector<at::Tensor*> passing;
  std::vector<size_t> places;
  size_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values.is_tensor(i)) continue;
    auto& tensor = values.tensor(i);
    if (tensor.defined() && tensor.requires_grad()) passing.push_back(&tensor), places.push_back(count);
    ++count;
  }
  if (passing.empty()) return {count, false};
  variable_list tensors;
  for (auto* tensor : passing) tensors.push_back(*tensor);
  auto seen = [see, places, count](Gradients gradients) {
    Gradients all(count);
    for (size_t i = 0; i < places.size(); ++i) all[places[i]] = gradients[i];
    all = see(std::move(all));
    for (size_t i = 0; i < places.size(); ++i) gradients[i] = all[places[i]];
    return gradients;
  };
  auto same = Passage::apply(c10::make_intrusive<SeenGradients>(seen), at::TensorList(tensors));
  for (size_t i = 0; i < passing.size(); ++i) *passing[i] = same[i];
  return {count, true};
}

void check_gradient_count(const char* what, const Gradients& gradients, size_t count) {
  TORCH_CHECK_VALUE(gradients.size() == count, "[", what, "] the hook left ", gradients.size(), " gradients of ", count,
                    ". Replace them one by one.");
}

}  // namespace

std::shared_ptr<BackwardWatch> BackwardWatch::begin(torch::nn::Module& module, const std::shared_ptr<HookLists>& lists,
                                                    HookArguments& inputs) {
  auto watch = std::make_shared<BackwardWatch>(module, lists);
  auto see = [watch](Gradients gradients) { return watch->arguments_came(std::move(gradients)); };
  std::tie(watch->input_count_, watch->has_inputs_) = pass(inputs, see);
  return watch;
}

void BackwardWatch::end(HookArguments& outputs) {
  auto self = shared_from_this();
  pass(outputs, [self](Gradients gradients) { return self->results_came(std::move(gradients)); });
}

Gradients BackwardWatch::results_came(Gradients grad_outputs) {
  auto lists = lists_.lock();
  if (!lists) return grad_outputs;
  auto hooks = lists->before_backward;
  auto count = grad_outputs.size();
  for (auto& [number, hook] : hooks) {
    (*hook)(*module_, grad_outputs);
    check_gradient_count("register_full_backward_pre_hook", grad_outputs, count);
  }
  grad_outputs_ = grad_outputs;
  if (!has_inputs_) arguments_came(Gradients(input_count_));
  return grad_outputs;
}

Gradients BackwardWatch::arguments_came(Gradients grad_inputs) {
  auto lists = lists_.lock();
  if (!lists) return grad_inputs;
  auto hooks = lists->after_backward;
  auto count = grad_inputs.size();
  for (auto& [number, hook] : hooks) {
    (*hook)(*module_, grad_inputs, grad_outputs_);
    check_gradient_count("register_full_backward_hook", grad_inputs, count);
  }
  grad_outputs_.clear();
  return grad_inputs;
}

}  // namespace intarsia
