// The samples once more, now through dispatch: values and gradients for every row's placements.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/rules/harness.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

std::vector<at::Tensor> call(const SampleCall& sample, const std::vector<at::Tensor>& tensors) {
  auto stack = sample.with_tensors(tensors);
  sample.handle().callBoxed(stack);
  return tensors_in(stack);
}

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

double tolerance_of(const at::Tensor& expected) {
  return c10::elementSize(c10::toRealValueType(expected.scalar_type())) == 4 ? 1e-3 : 1e-9;
}

std::string scaled_difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (!expected.is_floating_point() && !expected.is_complex()) return difference(actual, expected);
  auto finite = at::abs(expected).nan_to_num(0, 0, 0);
  auto scale = expected.numel() ? std::max(1.0, finite.max().item<double>()) : 1.0;
  return difference(actual / scale, expected / scale, tolerance_of(expected));
}

std::vector<at::Tensor> plain_gradients(const SampleCall& sample) {
  std::vector<at::Tensor> leaves;
  for (auto& t : sample.tensors()) leaves.push_back(wants_grad(t) ? t.detach().clone().requires_grad_() : t);
  try {
    return gradients(call(sample, leaves), leaves);
  } catch (const std::exception&) {
    return {};  // no derivative
  }
}

void compare(const SampleCall& sample, const Row& row, int64_t n, bool values, bool gradient) {
  auto mesh = init_device_mesh(at::kCPU, {n});
  std::vector<at::Tensor> inputs;
  auto expected = gradient ? plain_gradients(sample) : std::vector<at::Tensor>();
  for (size_t i = 0; i < sample.tensors().size(); ++i) {
    auto& whole = sample.tensors()[i];
    inputs.push_back(whole.defined() ? lay_out(whole, mesh, {row.in[i]}) : whole);
    if (!expected.empty() && wants_grad(whole)) inputs.back().requires_grad_();
  }
  auto outputs = call(sample, inputs);
  for (size_t i = 0; values && i < outputs.size(); ++i) {
    EXPECT_EQ(scaled_difference(full_tensor(outputs[i]).detach(), sample.expected()[i]), "") << "output " << i;
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

TEST(Rules, DispatchGivesTheValuesAndGradientsOfThePlainOp) {
  seed_dealer(3);
  int64_t tried = 0;
  for (auto& sample : samples()) {
    for (auto dtype : {at::kDouble, at::kFloat, at::kComplexDouble, at::kLong}) {
      SampleCall plain(sample, dtype);
      if (!plain.runs()) continue;
      auto& rule = rule_table().rules().at(sample.op);
      auto rows = rule.rows(plain.seen());
      if (rule.along.rows) {
        for (auto& row : rule.along.rows(plain.seen())) rows.push_back(row);
      }
      for (auto& row : rows) {
        for_each_world({1, 2, 3, 4}, [&](int64_t n) {
          if (dtype != at::kDouble && n > 2) return;
          Trial trial{{row}, {n}};
          if (!possible(plain, rule, trial)) return;
          SCOPED_TRACE(plain.text() + "  " + text_of(trial));
          CommDebugMode comms;
          EXPECT_NO_THROW(compare(plain, row, n, sample.values, sample.gradient));
          if (n == 1 || process_world()) {  // again, now that it is known: see Note [The direct path]
            EXPECT_NO_THROW(compare(plain, row, n, sample.values, sample.gradient));
          }
          for (auto& event : comms.fallbacks()) {
            EXPECT_NE(event.op, sample.op) << "has a rule, but ran on whole tensors: it lacks the shapes of its results";
          }
          ++tried;
        });
      }
    }
  }
  std::cout << tried << " calls compared\n";
}

// Inputs are not contiguous here. Code behind an op may view what it can view of a plain one.
TEST(Rules, LeaveResultsContiguousWhereThePlainOpDoes) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    if (!plain.runs() || is_inner(sample.op)) continue;
    auto tensors = plain.tensors();
    for (auto& t : tensors) {
      if (t.defined() && t.dim() > 1) t = t.transpose(0, -1).contiguous().transpose(0, -1);
    }
    std::vector<at::Tensor> expected;
    try {
      expected = call(plain, tensors);
    } catch (const std::exception&) {
      continue;  // a view of what is not contiguous
    }
    for (auto placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      auto inputs = tensors;
      for (auto& t : inputs) {
        if (t.defined()) t = distribute_tensor(t, mesh, {cut_dim(placement) < t.dim() ? placement : Placement(Replicate())});
      }
      auto outputs = call(plain, inputs);
      for (size_t o = 0; o < outputs.size(); ++o) {
        EXPECT_TRUE(outputs[o].is_contiguous() || !expected[o].is_contiguous())
            << plain.text() << " " << str(placement) << ", output " << o << " has strides " << outputs[o].strides();
      }
    }
  }
}

// Every tensor of every sample in turn is one number and plain; the others are distributed.
TEST(Rules, TakePlainNumbersInTheirStride) {
  int64_t tried = 0;
  auto one_of = [](const at::Tensor& t) { return t.reshape({-1})[0].reshape(std::vector<int64_t>(t.dim(), 1)).clone(); };
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    bool trusts = is_inner(sample.op) || sample.op == "aten::binary_cross_entropy";
    if (!plain.runs() || !sample.values || trusts) continue;
    for (size_t i = 0; i < plain.tensors().size() && plain.tensors().size() > 1; ++i) {
      auto tensors = plain.tensors();
      if (!tensors[i].defined() || tensors[i].numel() == 0) continue;
      tensors[i] = one_of(tensors[i]);
      std::vector<at::Tensor> expected;
      try {
        expected = call(plain, tensors);
      } catch (const std::exception&) {
        continue;
      }
      for_each_world({1, 2, 4}, [&](int64_t n) {
        auto mesh = init_device_mesh(at::kCPU, {n});
        auto inputs = tensors;
        for (size_t j = 0; j < inputs.size(); ++j) {
          if (j == i || !inputs[j].defined()) continue;
          inputs[j] = lay_out(inputs[j], mesh, {inputs[j].dim() ? Placement(Shard(0)) : Placement(Replicate())});
        }
        if (std::none_of(inputs.begin(), inputs.end(), is_dtensor)) return;
        SCOPED_TRACE(c10::str(plain.text(), " with number ", i, " on ", n));
        for (int time = 0; time < 2; ++time, ++tried) {
          std::vector<at::Tensor> outputs;
          EXPECT_NO_THROW(outputs = call(plain, inputs));
          for (size_t o = 0; o < outputs.size(); ++o) {
            EXPECT_EQ(scaled_difference(full_tensor(outputs[o]).detach(), expected[o]), "") << "output " << o;
          }
        }
      });
    }
  }
  std::cout << tried << " calls compared\n";
}

}  // namespace
}  // namespace intarsia
