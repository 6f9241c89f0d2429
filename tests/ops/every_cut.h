#pragma once
// A function or a module with every cut of its inputs and parameters: values and gradients must be those of plain
// tensors.

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include "tests/ops/module_table.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {

struct CutCase {
  std::string name;
  std::function<Net()> make;
  Tensors inputs;
  bool gradient = true;
  size_t compared = SIZE_MAX;  // how many of its outputs have a meaning for callers
};

using Arrangement = std::vector<Placements>;  // of each input, then of each parameter

// Outputs of a call, and the gradients of all inputs and parameters.
struct CutRun {
  Tensors outputs, gradients, tensors;  // `tensors`: plain inputs and parameters, to be laid out
};

inline bool is_differentiable(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

// A number per output element, so that each counts differently.
inline at::Tensor weighed(const at::Tensor& whole) {
  auto real = whole.is_complex() ? at::real(whole) + 2 * at::imag(whole) : whole;
  auto weights = (at::arange(real.numel(), at::kDouble) * 0.37).sin().reshape(real.sizes()) + 1.25;
  return (real.to(at::kDouble) * weights).sum();
}

inline CutRun run(const CutCase& c, const Arrangement* arrangement, const DeviceMesh* mesh) {
  auto whole = [](const at::Tensor& t) { return t.defined() && is_dtensor(t) ? full_tensor(t) : t; };
  torch::manual_seed(7);
  auto net = c.make();
  if (net.module) net.module->to(at::kDouble);
  CutRun run;
  Tensors inputs, leaves;
  auto laid = [&](const at::Tensor& tensor) {
    auto place = run.tensors.size();
    run.tensors.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    return mesh && tensor.defined() ? lay_out(run.tensors[place], *mesh, (*arrangement)[place]) : run.tensors[place];
  };
  for (auto& input : c.inputs) {
    inputs.push_back(laid(input));
    if (c.gradient && is_differentiable(input)) leaves.push_back(inputs.back().requires_grad_());
  }
  for (auto& p : net.module ? net.module->parameters() : Tensors()) {
    p.set_data(laid(p));
    leaves.push_back(p);
  }
  for (auto& buffer : net.module&& mesh ? net.module->buffers() : Tensors()) {
    buffer.set_data(lay_out(buffer, *mesh, Placements(mesh->ndim(), Replicate())));
  }
  torch::manual_seed(11);
  auto outputs = net.forward(inputs);
  if (outputs.size() > c.compared) outputs.resize(c.compared);
  at::Tensor loss;
  for (auto& out : outputs) {
    auto value = whole(out);
    run.outputs.push_back(value.defined() ? value.detach() : value);
    if (value.defined() && value.requires_grad()) loss = loss.defined() ? loss + weighed(value) : weighed(value);
  }
  if (loss.defined()) run.gradients = torch::autograd::grad({loss}, leaves, {}, std::nullopt, false, true);
  for (auto& gradient : run.gradients) gradient = whole(gradient);
  if (net.module) {
    for (auto& buffer : net.module->buffers()) run.outputs.push_back(whole(buffer));
  }
  return run;
}

// How a tensor may lie on one axis.
inline Placements options_of(const at::Tensor& tensor) {
  Placements options = {Replicate()};
  for (int64_t d = 0; tensor.defined() && d < tensor.dim(); ++d) options.push_back(Shard(d));
  if (is_differentiable(tensor)) options.push_back(Partial(ReduceOp::sum));
  return options;
}

// Each tensor in turn lies in every way; then all of them do.
inline std::vector<Arrangement> arrangements(const Tensors& tensors) {
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
    for (auto& tensor : tensors) one.push_back({options_of(tensor)[way % options_of(tensor).size()]});
    all.push_back(one);
  }
  return all;
}

inline Arrangement drawn(const Tensors& tensors, int64_t axes, std::mt19937& draw) {
  Arrangement one;
  for (auto& tensor : tensors) {
    auto options = options_of(tensor);
    auto& placements = one.emplace_back();
    for (int64_t axis = 0; axis < axes; ++axis) placements.push_back(options[draw() % options.size()]);
  }
  return one;
}

// Values are compared beside the largest one.
inline std::string first_difference(const Tensors& actual, const Tensors& expected, const char* what) {
  if (actual.size() != expected.size()) return c10::str(actual.size(), " ", what, "s, not ", expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    auto &a = actual[i], &e = expected[i];
    if (!a.defined() || !e.defined()) {  // no gradient, or zeros
      auto& present = a.defined() ? a : e;
      if (present.defined() && present.any().item<bool>()) return c10::str(what, " ", i, " is missing on one side");
      continue;
    }
    bool counts = is_differentiable(e);
    auto scale =
        counts && e.numel() ? std::max(1.0, at::abs(e).to(at::kDouble).nan_to_num(0, 0, 0).max().item<double>()) : 1.0;
    bool is_short = c10::elementSize(c10::toRealValueType(e.scalar_type())) < 8;
    auto wrong = counts ? difference(a / scale, e / scale, is_short ? 1e-5 : 1e-9) : difference(a, e);
    if (!wrong.empty()) return c10::str(what, " ", i, ": ", wrong);
  }
  return "";
}

inline void compare(const CutCase& c, const CutRun& expected, const Arrangement& arrangement, const DeviceMesh& mesh) {
  std::string text;
  for (auto& placements : arrangement) text += " " + str(placements);
  SCOPED_TRACE(c.name + text + " on " + mesh.text());
  try {
    auto actual = run(c, &arrangement, &mesh);
    EXPECT_EQ(first_difference(actual.outputs, expected.outputs, "output"), "");
    EXPECT_EQ(first_difference(actual.gradients, expected.gradients, "gradient"), "");
  } catch (const std::exception& error) {
    ADD_FAILURE() << std::string(error.what()).substr(0, 400);
  }
}

// Some functions have no derivative.
inline CutRun run_plain(CutCase& c) {
  try {
    return run(c, nullptr, nullptr);
  } catch (const std::exception&) {
    c.gradient = false;
    return run(c, nullptr, nullptr);
  }
}

inline void check_every_cut(std::vector<CutCase> cases) {
  seed_dealer(5);
  int64_t tried = 0;
  for (auto& c : cases) {
    auto expected = run_plain(c);
    for_each_world({2, 3, 4}, [&](int64_t n) {
      if (n < 4 || process_world()) {
        auto mesh = init_device_mesh(at::kCPU, {n});
        for (auto& one : arrangements(expected.tensors)) compare(c, expected, one, mesh), ++tried;
      }
      if (n < 4) return;
      std::mt19937 draw(17);
      for (int time = 0; time < 4; ++time, ++tried) {
        compare(c, expected, drawn(expected.tensors, 2, draw), init_device_mesh(at::kCPU, {2, 2}));
      }
    });
  }
  std::cout << tried << " calls compared\n";
}

}  // namespace intarsia
