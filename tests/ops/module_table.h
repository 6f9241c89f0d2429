#pragma once
// Modules and functions on a batch that is cut, with replicated parameters: outputs, gradients and buffers must be
// those of plain tensors, no op may run on whole tensors, and the batch stays where it is.

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/nn/distribute_module.h"
#include "tests/support/compare.h"
#include "tests/support/world.h"

namespace intarsia {

using Tensors = std::vector<at::Tensor>;

// A module and how it is called; functions have no module.
struct Net {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors&)> forward;
};

// A tensor whose dim `cut` is the batch; -1 where it has none.
struct Input {
  at::Tensor value;
  int64_t cut = 0;
  bool grad = true;  // if it is floating
};

struct ModuleCase {
  std::string name;
  std::function<Net()> make;
  std::vector<Input> inputs;
  std::string moves = "";  // what its meaning needs: reduce, gather
};

inline void collect(Tensors& list, const at::Tensor& tensor) {
  if (tensor.defined()) list.push_back(tensor);
}
template <class... T>
void collect(Tensors& list, const std::tuple<T...>& values) {
  std::apply([&](auto&... value) { (collect(list, value), ...); }, values);
}

template <class Result>
Tensors outputs_of(const Result& result) {
  Tensors list;
  collect(list, result);
  return list;
}

// A module called with as many tensors as there are inputs.
template <class Holder>
Net net(Holder m) {
  return {m.ptr(), [m](const Tensors& t) mutable -> Tensors {
            if constexpr (requires { m->forward(t[0]); }) {
              if (t.size() == 1) return outputs_of(m->forward(t[0]));
            }
            if constexpr (requires { m->forward(t[0], t[1]); }) {
              if (t.size() == 2) return outputs_of(m->forward(t[0], t[1]));
            }
            if constexpr (requires { m->forward(t[0], t[1], t[2]); }) {
              if (t.size() == 3) return outputs_of(m->forward(t[0], t[1], t[2]));
            }
            if constexpr (requires { m->forward(t[0], t[1], t[2], t[3]); }) {
              if (t.size() == 4) return outputs_of(m->forward(t[0], t[1], t[2], t[3]));
            }
            ADD_FAILURE() << "no forward takes " << t.size() << " tensors";
            return {};
          }};
}

template <class Body>
std::function<Net()> function(Body body) {
  return [body] { return Net{nullptr, [body](const Tensors& t) { return outputs_of(body(t)); }}; };
}

struct ModuleRun {
  Tensors outputs, gradients, buffers;
  std::string moved;  // the kinds of collectives, each once: reduce, gather (also all to all)
  std::string table;
  std::string fallbacks;
};

inline at::Tensor whole(const at::Tensor& t) {
  return !t.defined() ? t : (is_dtensor(t) ? full_tensor(t) : t).detach();
}

// A sum that weighs every element of every output differently, on the outputs where they lie.
inline at::Tensor weighted(const Tensors& outputs) {
  at::Tensor sum;
  for (auto& out : outputs) {
    if (!out.requires_grad()) continue;
    auto weight =
        ((at::arange(out.numel(), at::kDouble) * 0.37).sin() + 1.25).reshape(out.sizes()).to(out.scalar_type());
    if (is_dtensor(out)) {
      weight = distribute_tensor(weight, mesh_of(out), Placements(mesh_of(out).ndim(), Replicate()), std::nullopt);
    }
    auto part = (out * weight).sum();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

inline ModuleRun run(const ModuleCase& c, const DeviceMesh* mesh) {
  torch::manual_seed(7);
  auto net = c.make();
  if (net.module) net.module->to(at::kDouble);
  if (net.module && mesh) distribute_module(*net.module, *mesh);
  Tensors inputs, leaves;
  for (auto& input : c.inputs) {
    auto placement = input.cut < 0 ? Placement(Replicate()) : Placement(Shard(input.cut));
    inputs.push_back(mesh ? lay_out(input.value, *mesh, Placements(mesh->ndim(), placement)) : input.value.clone());
    if (input.grad && input.value.is_floating_point()) leaves.push_back(inputs.back().requires_grad_());
  }
  if (net.module) {
    for (auto& p : net.module->parameters()) leaves.push_back(p);
  }
  torch::manual_seed(11);
  std::optional<RandomScope> agreed;  // so that draws send nothing
  if (mesh) agreed.emplace(*mesh);
  ModuleRun result;
  CommDebugMode comms;
  result.outputs = net.forward(inputs);
  if (auto loss = weighted(result.outputs); loss.defined()) loss.backward();
  comms.exit();
  for (auto& leaf : leaves) result.gradients.push_back(whole(leaf.grad()));
  for (auto& out : result.outputs) out = whole(out);
  if (net.module) {
    for (auto& buffer : net.module->buffers()) result.buffers.push_back(whole(buffer));
  }
  std::set<std::string> ops, kinds;
  for (auto& [kind, count] : comms.get_comm_counts()) {
    kinds.insert(kind.rfind("all_reduce", 0) == 0 ? "reduce" : kind.rfind("all_", 0) == 0 ? "gather" : kind);
  }
  for (auto& kind : kinds) result.moved += (result.moved.empty() ? "" : " ") + kind;
  result.table = comms.table();
  for (auto& event : comms.fallbacks()) ops.insert(event.op);
  for (auto& op : ops) result.fallbacks += op + " ";
  return result;
}

inline void expect_equal(const Tensors& actual, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    auto name = what + " " + std::to_string(i);
    // An unused input has no gradient, or zeros.
    if (!actual[i].defined() || !expected[i].defined()) {
      EXPECT_FALSE((actual[i].defined() && actual[i].any().item<bool>()) ||
                   (expected[i].defined() && expected[i].any().item<bool>()))
          << name << " is missing";
      continue;
    }
    EXPECT_EQ(difference(actual[i], expected[i], 1e-9), "") << name;
  }
}

// Every case on batches that divide and that do not (5 over 4 leaves a rank without any), on one axis and on two.
inline void check(const std::vector<ModuleCase>& cases) {
  for (auto& c : cases) {
    auto expected = run(c, nullptr);
    for_each_world({2, 3, 4, 5}, [&](int64_t n) {
      for (auto& shape : mesh_shapes(n)) {
        SCOPED_TRACE(c.name + " on " + c10::str(c10::IntArrayRef(shape)));
        auto mesh = init_device_mesh(at::kCPU, shape);
        ModuleRun actual;
        try {
          actual = run(c, &mesh);
        } catch (const c10::Error& error) {
          ADD_FAILURE() << error.what_without_backtrace();
          continue;
        }
        EXPECT_EQ(actual.fallbacks, "");
        EXPECT_EQ(actual.moved, c.moves) << actual.table;
        expect_equal(actual.outputs, expected.outputs, "output");
        expect_equal(actual.gradients, expected.gradients, "gradient");
        expect_equal(actual.buffers, expected.buffers, "buffer");
      }
    });
  }
}

}  // namespace intarsia
