#include "tests/rules/compare_calls.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/lay_out.h"

namespace intarsia {
namespace {

// The gradients of a weighted sum of all outputs; none where the op has no gradient.
std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> losses, leaves;
  for (auto& out : outputs) {
    if (!out.requires_grad()) continue;
    auto whole = is_dtensor(out) ? full_tensor(out) : out;
    if (whole.is_complex()) whole = at::real(whole) + 2 * at::imag(whole);
    losses.push_back(whole.mul(static_cast<double>(out.numel()) + 0.5).sum().to(at::kDouble));
  }
  for (auto& in : inputs) {
    if (in.defined() && in.requires_grad()) leaves.push_back(in);
  }
  if (losses.empty()) return {};
  return torch::autograd::grad({losses.size() == 1 ? losses[0] : at::stack(losses).sum()}, leaves, {}, std::nullopt,
                               false, /*allow_unused=*/true);
}

bool wants_grad(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

double tolerance_beside_one(const at::Tensor& expected) {
  return c10::elementSize(c10::toRealValueType(expected.scalar_type())) == 4 ? 1e-3 : 1e-9;
}

// The sample's tensors, in memory that has gaps if asked for.
std::vector<at::Tensor> given(const SampleCall& sample, bool gaps) {
  auto tensors = sample.tensors();
  for (auto& t : tensors) {
    if (gaps && t.defined()) t = in_order_of(t.strides(), t, true);
  }
  return tensors;
}

std::vector<at::Tensor> plain_gradients(const SampleCall& sample, bool gaps) {
  std::vector<at::Tensor> leaves;
  for (auto& t : given(sample, gaps))
    leaves.push_back(wants_grad(t) ? (gaps ? t.detach() : t.detach().clone()).requires_grad_() : t);
  try {
    return gradients(call(sample, leaves), leaves);
  } catch (const std::exception&) {
    return {};  // no derivative
  }
}

}  // namespace

// Where they decide whether a reshape shares memory.
std::vector<int64_t> strides_that_count(const at::Tensor& tensor) {
  std::vector<int64_t> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    strides.push_back(tensor.size(d) == 1 || tensor.numel() == 0 ? 0 : tensor.stride(d));
  return strides;
}

std::vector<at::Tensor> call(const SampleCall& sample, const std::vector<at::Tensor>& tensors) {
  auto stack = sample.with_tensors(tensors);
  sample.handle().callBoxed(stack);
  return tensors_in(stack);
}

std::vector<at::Tensor> laid_out(const SampleCall& sample, const DeviceMesh& mesh, const Placements& placements,
                                 bool gaps) {
  auto tensors = given(sample, gaps);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) tensors[i] = lay_out(tensors[i], mesh, {placements[i]});
  }
  return tensors;
}

std::string scaled_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (!expected.is_floating_point() && !expected.is_complex()) return difference(actual, expected);
  auto finite = at::abs(expected).nan_to_num(0, 0, 0);
  auto scale = expected.numel() ? std::max(1.0, finite.max().item<double>()) : 1.0;
  return difference(actual / scale, expected / scale, tolerance_beside_one(expected));
}

void compare(const SampleCall& sample, const DeviceMesh& mesh, const Placements& placements, bool values, bool gradient,
             bool gaps) {
  std::vector<at::Tensor> results;
  try {
    results = gaps ? call(sample, given(sample, gaps)) : sample.expected();
  } catch (const std::exception&) {
    return;  // a view of what has gaps
  }
  auto expected = gradient ? plain_gradients(sample, gaps) : std::vector<at::Tensor>();
  auto inputs = laid_out(sample, mesh, placements, gaps);
  for (auto& input : inputs) {
    if (!expected.empty() && wants_grad(input)) input.requires_grad_();
  }
  auto outputs = call(sample, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].sizes(), results[i].sizes()) << "output " << i;
    EXPECT_EQ(strides_that_count(outputs[i]), strides_that_count(results[i])) << "output " << i;
    if (!values) continue;
    EXPECT_EQ(scaled_difference(full_tensor(outputs[i]).detach(), results[i]), "") << "output " << i;
  }
  if (expected.empty()) return;
  auto actual = gradients(outputs, inputs);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << "gradient " << i;
    if (!actual[i].defined()) continue;
    // Where autograd knows the gradient to be zero it makes a plain tensor of zeros.
    auto found = is_dtensor(actual[i]) ? full_tensor(actual[i]) : actual[i];
    EXPECT_EQ(scaled_difference(found, expected[i]), "") << "gradient " << i;
  }
}

Rows all_rows(const SampleCall& sample, const Rule& rule) {
  auto rows = rule.rows(sample.seen());
  if (!rule.joint.rows) return rows;
  for (auto& row : rule.joint.rows(sample.seen())) rows.push_back(row);
  return rows;
}

}  // namespace intarsia
