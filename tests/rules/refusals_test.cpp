// Values that a plain op refuses are an error on every rank, whichever of them holds the wrong one: the samples with
// one element exchanged, through dispatch. A simulation tells if an error would not reach all ranks.

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "tests/rules/harness.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::rules_refusals_test {
namespace {

// Kernels that take places on trust: a wrong one is a wrong address.
bool trusts(const std::string& op) {
  return op.find("backward") != std::string::npos || op.find("_unsafe") != std::string::npos;
}

std::string error_of(const SampleCall& sample, const std::vector<at::Tensor>& tensors) {
  auto stack = sample.with_tensors(tensors);
  return error_text<c10::Error>([&] { sample.handle().callBoxed(stack); });
}

// The inputs with one element of one of them exchanged, if the plain op takes offence.
struct Wrecked {
  std::vector<at::Tensor> tensors;
  std::string error;
};

std::vector<Wrecked> wrecks_of(const SampleCall& sample) {
  std::vector<Wrecked> found;
  for (size_t i = 0; i < sample.tensors().size(); ++i) {
    auto& input = sample.tensors()[i];
    if (!input.defined() || input.dim() == 0 || input.numel() == 0) continue;
    for (int64_t place : {int64_t{0}, input.numel() - 1}) {
      for (double value : {0.0, 1000.0, -1000.0, std::numeric_limits<double>::quiet_NaN()}) {
        if (std::isnan(value) && !input.is_floating_point()) continue;
        auto tensors = sample.tensors();
        tensors[i] = input.contiguous().clone();
        tensors[i].view({-1})[place].fill_(value);
        auto error = error_of(sample, tensors);
        if (error != "no error") found.push_back({tensors, error});
      }
    }
  }
  return found;
}

// On ranks that hold the inputs as a row says. How many worlds can.
int64_t expect_error_on_every_rank(const SampleCall& plain, const Rule& rule, const Row& row, const Wrecked& wrecked) {
  int64_t tried = 0;
  for_each_world({2, 3}, [&](int64_t n) {
    Trial trial{{row}, {n}};
    if (!possible(plain, rule, trial)) return;
    auto mesh = init_device_mesh(at::kCPU, {n});
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < wrecked.tensors.size(); ++i) {
      auto& whole = wrecked.tensors[i];
      inputs.push_back(whole.defined() ? lay_out(whole, mesh, {row.in[i]}) : whole);
    }
    EXPECT_EQ(error_of(plain, inputs), wrecked.error) << plain.text() << "  " << text_of(trial);
    ++tried;
  });
  return tried;
}

int64_t try_wrecks_of(const Sample& sample, at::ScalarType dtype) {
  SampleCall plain(sample, dtype);
  if (!plain.runs()) return 0;
  auto& rule = rule_table().rules().at(sample.op);
  int64_t tried = 0;
  for (auto& wrecked : wrecks_of(plain)) {
    for (auto& row : rule.rows(plain.seen())) tried += expect_error_on_every_rank(plain, rule, row, wrecked);
  }
  return tried;
}

TEST(Refusals, OfAnyOpReachEveryRank) {
  int64_t all = 0;
  std::set<std::string> ops;
  for (auto& sample : samples()) {
    if (trusts(sample.op)) continue;
    for (auto dtype : {at::kDouble, at::kLong}) {
      auto tried = try_wrecks_of(sample, dtype);
      if (tried > 0) ops.insert(sample.op);
      all += tried;
    }
  }
  std::cout << all << " calls of " << ops.size() << " ops that refuse a value\n";
  EXPECT_GE(ops.size(), 25u);
}

}  // namespace
}  // namespace intarsia::rules_refusals_test
