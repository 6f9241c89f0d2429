// Every function that LibTorch makes of other ops, with every cut of its inputs: values and gradients of the plain one.

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/ops/composites.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;
using Arrangement = std::vector<Placements>;  // of each tensor

const std::vector<Sample>& composites() {
  static auto* all = [] {
    auto* list = new std::vector<Sample>;
    for (auto* add : {add_torch_composites, add_structure_composites, add_nn_composites, add_recurrent_composites,
                      add_linalg_composites, add_fft_composites, add_special_composites}) {
      add(*list);
    }
    return list;
  }();
  return *all;
}

// How a tensor may lie on one axis.
Placements options_of(const at::Tensor& tensor) {
  Placements options = {Replicate()};
  if (!tensor.defined()) return options;
  for (int64_t d = 0; d < tensor.dim(); ++d) options.push_back(Shard(d));
  if (tensor.is_floating_point() || tensor.is_complex()) options.push_back(Partial(ReduceOp::sum));
  return options;
}

// Each tensor in turn lies in every way; then all of them do.
std::vector<Arrangement> arrangements(const Tensors& tensors) {
  std::vector<Arrangement> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (auto& placement : options_of(tensors[i])) {
      Arrangement one(tensors.size(), {Replicate()});
      one[i] = {placement};
      all.push_back(one);
    }
  }
  for (size_t way = 1; tensors.size() > 1 && way < 5; ++way) {
    Arrangement one;
    for (auto& tensor : tensors) {
      auto options = options_of(tensor);
      one.push_back({options[way % options.size()]});
    }
    all.push_back(one);
  }
  return all;
}

Arrangement drawn(const Tensors& tensors, int64_t axes, std::mt19937& draw) {
  Arrangement one;
  for (auto& tensor : tensors) {
    auto options = options_of(tensor);
    auto& placements = one.emplace_back();
    for (int64_t axis = 0; axis < axes; ++axis) placements.push_back(options[draw() % options.size()]);
  }
  return one;
}

struct Run {
  Tensors outputs, gradients;
};

at::Tensor whole_of(const at::Tensor& tensor) { return !tensor.defined() || !is_dtensor(tensor) ? tensor : full_tensor(tensor); }

bool has_gradient(const at::Tensor& tensor) { return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()); }

Run run_on(const SampleCall& sample, Tensors inputs, bool gradient) {
  Tensors leaves;
  for (auto& input : inputs) {
    if (gradient && has_gradient(input)) leaves.push_back(input.requires_grad_());
  }
  auto stack = sample.with_tensors(inputs);
  sample.handle().callBoxed(stack);
  Run run;
  at::Tensor loss;
  for (auto& out : tensors_in(stack)) {
    auto whole = whole_of(out);
    run.outputs.push_back(whole.defined() ? whole.detach() : whole);
    if (!whole.defined() || !whole.requires_grad()) continue;
    if (whole.is_complex()) whole = at::real(whole) + 2 * at::imag(whole);
    auto weights = (at::arange(whole.numel(), at::kDouble) * 0.37).sin().reshape(whole.sizes()) + 1.25;
    auto part = (whole.to(at::kDouble) * weights).sum();
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined()) run.gradients = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, true);
  for (auto& gradient : run.gradients) gradient = whole_of(gradient);
  return run;
}

// Some functions have no derivative.
Run run_plain(const SampleCall& sample, bool& gradient) {
  Tensors copies;
  for (auto& tensor : sample.tensors()) copies.push_back(tensor.defined() ? tensor.clone() : tensor);
  try {
    return run_on(sample, copies, gradient);
  } catch (const std::exception&) {
    gradient = false;
    return run_on(sample, sample.tensors(), false);
  }
}

std::string first_difference(const Tensors& actual, const Tensors& expected, const char* what) {
  if (actual.size() != expected.size()) return c10::str(what, "s: ", actual.size(), ", not ", expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    auto &a = actual[i], &e = expected[i];
    if (!a.defined() || !e.defined()) {  // no gradient, or zeros
      auto& present = a.defined() ? a : e;
      if (present.defined() && present.any().item<bool>()) return c10::str(what, " ", i, " is missing on one side");
      continue;
    }
    auto finite = has_gradient(e) ? at::abs(e).nan_to_num(0, 0, 0) : at::Tensor();
    auto scale = finite.defined() && e.numel() ? std::max(1.0, finite.max().item<double>()) : 1.0;
    auto wrong = has_gradient(e) ? difference(a / scale, e / scale, e.scalar_type() == at::kDouble || e.is_complex() ? 1e-9 : 1e-5)
                                 : difference(a, e);
    if (!wrong.empty()) return c10::str(what, " ", i, ": ", wrong);
  }
  return "";
}

std::string text(const Arrangement& arrangement) {
  std::string text;
  for (auto& placements : arrangement) text += " " + str(placements);
  return text;
}

void compare(const SampleCall& plain, const Run& expected, const Arrangement& arrangement, const DeviceMesh& mesh, bool gradient) {
  SCOPED_TRACE(plain.text() + text(arrangement) + " on " + mesh.text());
  Tensors inputs;
  for (size_t i = 0; i < arrangement.size(); ++i) {
    auto& whole = plain.tensors()[i];
    inputs.push_back(whole.defined() ? lay_out(whole, mesh, arrangement[i]) : whole);
  }
  try {
    auto actual = run_on(plain, inputs, gradient);
    EXPECT_EQ(first_difference(actual.outputs, expected.outputs, "output"), "");
    EXPECT_EQ(first_difference(actual.gradients, expected.gradients, "gradient"), "");
  } catch (const std::exception& error) {
    ADD_FAILURE() << std::string(error.what()).substr(0, 400);
  }
}

TEST(Composites, AreThePlainOnesHoweverTheirInputsLie) {
  seed_dealer(5);
  int64_t tried = 0;
  for (auto& sample : composites()) {
    SampleCall plain(sample, at::kDouble);
    EXPECT_TRUE(plain.runs()) << plain.text();
    if (!plain.runs()) continue;
    bool gradient = sample.gradient;
    auto expected = run_plain(plain, gradient);
    for_each_world({2, 3, 4}, [&](int64_t n) {
      if (n < 4 || process_world()) {
        auto mesh = init_device_mesh(at::kCPU, {n});
        for (auto& one : arrangements(plain.tensors())) compare(plain, expected, one, mesh, gradient), ++tried;
      }
      if (n < 4) return;
      std::mt19937 draw(tried);
      for (int time = 0; time < 4; ++time, ++tried) {
        compare(plain, expected, drawn(plain.tensors(), 2, draw), init_device_mesh(at::kCPU, {2, 2}), gradient);
      }
    });
  }
  std::cout << tried << " calls compared\n";
}

}  // namespace
}  // namespace intarsia
