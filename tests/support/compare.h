#pragma once
// One function on plain and on distributed tensors: values and all gradients must agree.

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "tests/support/lay_out.h"

namespace intarsia {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// A weight for every element, so that each output's gradient counts differently.
inline at::Tensor weighted_sum(const at::Tensor& out) {
  auto whole = is_dtensor(out) ? full_tensor(out) : out;
  auto weight = (at::arange(whole.numel(), whole.options()) * 0.37).sin() + 1.25;
  return (whole.reshape({-1}) * weight).sum();
}

// Empty if `function` gives the same value and gradients when input i lies as placements[i] says ("" for a missing
// tensor); else what differs. Floating inputs get gradients.
inline std::string compare(const Function& function, const std::vector<at::Tensor>& inputs, const DeviceMesh& mesh,
                           const std::vector<std::string>& placements, double tolerance = 1e-11) {
  std::vector<at::Tensor> plain, cut, plain_leaves, cut_leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    plain.push_back(inputs[i].defined() ? inputs[i].clone() : inputs[i]);
    cut.push_back(inputs[i].defined() ? lay_out(inputs[i], mesh, parse_placements(placements[i])) : inputs[i]);
    if (!inputs[i].defined() || !inputs[i].is_floating_point()) continue;
    plain_leaves.push_back(plain[i].requires_grad_());
    cut_leaves.push_back(cut[i].requires_grad_());
  }
  auto expected = function(plain), actual = function(cut);
  auto wrong = difference(full_tensor(actual).detach(), expected.detach(), tolerance);
  if (!wrong.empty()) return "value: " + wrong;
  auto goals = torch::autograd::grad({weighted_sum(expected)}, plain_leaves, {}, std::nullopt, false, true);
  auto found = torch::autograd::grad({weighted_sum(actual)}, cut_leaves, {}, std::nullopt, false, true);
  for (size_t i = 0; i < goals.size(); ++i) {
    if (goals[i].defined() != found[i].defined()) return "gradient " + std::to_string(i) + " is missing on one side";
    if (!goals[i].defined()) continue;
    wrong = difference(is_dtensor(found[i]) ? full_tensor(found[i]) : found[i], goals[i], tolerance);
    if (!wrong.empty()) return "gradient " + std::to_string(i) + ": " + wrong;
  }
  return "";
}

// Values around zero that differ from each other.
inline at::Tensor waves(std::vector<int64_t> shape, double step = 0.7) {
  return (at::arange(c10::multiply_integers(shape), at::kDouble) * step).sin().mul(2).reshape(shape);
}

}  // namespace intarsia
