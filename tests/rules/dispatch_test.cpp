// The samples once more, now through dispatch: values and gradients for every row's placements.

#include <algorithm>

#include <gtest/gtest.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/rules/compare_calls.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::rules_dispatch_test {
namespace {

TEST(Rules, DispatchGivesTheValuesAndGradientsOfThePlainOp) {
  seed_dealer(3);
  int64_t tried = 0;
  for (auto& sample : samples()) {
    for (auto dtype : {at::kDouble, at::kFloat, at::kComplexDouble, at::kLong}) {
      SampleCall plain(sample, dtype);
      if (!plain.runs()) continue;
      auto& rule = rule_table().rules().at(sample.op);
      for (auto& row : all_rows(plain, rule)) {
        for_each_world({1, 2, 3, 4}, [&](int64_t n) {
          if (dtype != at::kDouble && n > 2) return;
          Trial trial{{row}, {n}};
          if (!possible(plain, rule, trial)) return;
          SCOPED_TRACE(plain.text() + "  " + text_of(trial));
          CommDebugMode comms;
          auto mesh = init_device_mesh(at::kCPU, {n});
          EXPECT_NO_THROW(compare(plain, mesh, row.in, sample.values, sample.gradient));
          if (n == 1 || process_world()) {  // again, now that it is known: see Note [The direct path]
            EXPECT_NO_THROW(compare(plain, mesh, row.in, sample.values, sample.gradient));
          }
          for (auto& event : comms.fallbacks()) {
            EXPECT_NE(event.op, sample.op)
                << "has a rule, but ran on whole tensors: it lacks the shapes of its results";
          }
          ++tried;
        });
      }
    }
  }
  std::cout << tried << " calls compared\n";
}

// As a column of a larger tensor has, which is given to from_local. Kernels that need dense memory must get it.
TEST(Rules, TakeLocalTensorsWithGapsInMemory) {
  seed_dealer(4);
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    bool reads_gaps = sample.op.rfind("aten::as_strided", 0) == 0;
    if (!plain.runs() || is_inner(sample.op) || reads_gaps) continue;
    auto& rule = rule_table().rules().at(sample.op);
    for (auto& row : all_rows(plain, rule)) {
      Trial trial{{row}, {2}};
      if (!possible(plain, rule, trial)) continue;
      SCOPED_TRACE(plain.text() + "  " + text_of(trial));
      EXPECT_NO_THROW(compare(plain, mesh, row.in, sample.values, sample.gradient, true));
    }
  }
}

// Whether two tensors of one shape have their elements in the same order in memory.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; a.numel() > 1 && d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// The same values, with dims in another order in memory: the last one slowest, or all of them the other way round.
std::vector<std::vector<at::Tensor>> in_other_orders(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> orders(2, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& t = tensors[i];
    if (!t.defined() || t.dim() < 2) continue;
    orders[0][i] = t.transpose(0, -1).contiguous().transpose(0, -1);
    orders[1][i] = t.movedim(-1, 0).contiguous().movedim(0, -1);
  }
  return orders;
}

Placement fitting(const Placement& placement, const at::Tensor& tensor) {
  bool fits = is_partial(placement) ? tensor.is_floating_point() : cut_dim(placement) < tensor.dim();
  return fits ? placement : Placement(Replicate());
}

void expect_order_in_memory(const SampleCall& plain, const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh) {
  std::vector<at::Tensor> expected;
  try {
    expected = call(plain, tensors);
  } catch (const std::exception&) {
    return;  // a view of what is not contiguous
  }
  for (auto placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())}) {
    auto inputs = tensors;
    for (auto& t : inputs) {
      if (t.defined()) t = distribute_tensor(t, mesh, {fitting(placement, t)});
    }
    auto outputs = call(plain, inputs);
    for (size_t o = 0; o < outputs.size(); ++o) {
      EXPECT_TRUE(outputs[o].is_contiguous() || !expected[o].is_contiguous())
          << plain.text() << " " << str(placement) << ", output " << o << " has strides " << outputs[o].strides();
      EXPECT_TRUE(lie_alike(outputs[o], expected[o]))
          << plain.text() << " " << str(placement) << ", output " << o << " has strides " << outputs[o].strides()
          << ", not " << expected[o].strides();
    }
  }
}

// Inputs are not contiguous here. Code behind an op may view what it can view of a plain one.
TEST(Rules, LeaveResultsInMemoryAsThePlainOpDoes) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  for (auto& sample : samples()) {
    SampleCall plain(sample, at::kDouble);
    if (!plain.runs() || is_inner(sample.op)) continue;
    for (auto& tensors : in_other_orders(plain.tensors())) expect_order_in_memory(plain, tensors, mesh);
  }
}

// Every tensor of every sample in turn is one number and plain; the others are distributed.
TEST(Rules, TakePlainNumbersInTheirStride) {
  int64_t tried = 0;
  auto one_of = [](const at::Tensor& t) {
    return t.reshape({-1})[0].reshape(std::vector<int64_t>(t.dim(), 1)).clone();
  };
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
}  // namespace intarsia::rules_dispatch_test
