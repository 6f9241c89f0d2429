// What a PlainTensorScope admits in the forward pass is admitted in the backward pass of that graph.

#include <torch/torch.h>

#include "intarsia/tensor/policy.h"
#include "tests/ops/along_the_cut.h"

namespace intarsia::tensor_plain_scope_test {
namespace {

using Function = std::function<at::Tensor(const at::Tensor& x)>;

struct Case {
  const char* name;
  Function function;  // of a [6, 4] tensor, with plain tensors beside it
};

std::vector<Case> cases() {
  auto places = at::tensor({0, 3, 5, 3}, at::kLong), classes = at::tensor({0, 3, 1, 3, 2, 0}, at::kLong);
  auto weight = scrambled({4, 3}), mask = scrambled({6, 4}) > 0;
  return {
      {"embedding", [=](auto& x) { return at::embedding(x, places); }},
      {"mm", [=](auto& x) { return x.mm(weight); }},
      {"linear", [=](auto& x) { return at::linear(x, weight.t()); }},
      {"mul", [=](auto& x) { return x * mask; }},
      {"where", [=](auto& x) { return at::where(mask, x * x, x); }},
      {"gather", [=](auto& x) { return x.gather(1, places.expand({6, 4}) % 4); }},
      {"cross_entropy", [=](auto& x) { return at::cross_entropy_loss(x, classes); }},
      {"pow", [=](auto& x) { return at::pow(x.abs() + 1, scrambled({6, 4})); }},
  };
}

TEST(PlainScope, ReachesTheBackwardPassOfItsGraph) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto policy : {PlainTensors::replicate, PlainTensors::verify}) {
      for (auto& [name, function] : cases()) {
        for (Placement placement : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
          SCOPED_TRACE(std::string(name) + " " + str(placement) + " on " + std::to_string(n));
          auto whole = scrambled({6, 4}).requires_grad_();
          auto cut = lay_out(scrambled({6, 4}), mesh, {placement}).requires_grad_();
          at::Tensor out;
          {
            PlainTensorScope scope(policy);
            out = function(cut);
          }
          out.sum().backward();
          function(whole).sum().backward();
          EXPECT_EQ(difference(full_tensor(cut.grad()), whole.grad(), 1e-9), "");
        }
      }
    }
  });
}

TEST(PlainScope, ReachesTheDerivativeOfTheDerivative) {
  for_each_world({2}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto plain = scrambled({6, 4});
    auto twice = [](const at::Tensor& out, const at::Tensor& x) {
      auto first = torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({(first * first).sum()}, {x})[0];
    };
    auto whole = scrambled({6, 4}).requires_grad_();
    auto cut = lay_out(scrambled({6, 4}), mesh, {Shard(0)}).requires_grad_();
    at::Tensor out;
    {
      PlainTensorScope scope(PlainTensors::replicate);
      out = cut * cut * plain;
    }
    EXPECT_EQ(difference(full_tensor(twice(out, cut)), twice(whole * whole * plain, whole), 1e-9), "");
  });
}

TEST(PlainScope, EndsForWhatIsMadeAfterIt) {
  for_each_world({2}, [](int64_t n) {
    auto cut = lay_out(scrambled({6, 4}), init_device_mesh(at::kCPU, {n}), {Shard(0)}).requires_grad_();
    {
      PlainTensorScope scope(PlainTensors::replicate);
    }
    EXPECT_ANY_THROW(cut * scrambled({6, 4}));
    auto out = cut.exp();  // no node of a scope, so its backward pass takes no plain gradient
    EXPECT_ANY_THROW(out.backward(at::ones({6, 4}, at::kDouble)));
  });
}

}  // namespace
}  // namespace intarsia::tensor_plain_scope_test
