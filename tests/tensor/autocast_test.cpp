// Under autocast, distributed tensors get the dtypes and the values that plain ones get.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/compare.h"
#include "tests/support/world.h"

namespace intarsia::tensor_autocast_test {
namespace {

class Autocast {
 public:
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor (*call)(const std::vector<at::Tensor>&);
};

const std::vector<Case> kCases = {
    {"mm", {{5, 4}, {4, 3}}, [](auto& t) { return at::mm(t[0], t[1]); }},
    {"linear", {{5, 2, 4}, {3, 4}, {3}}, [](auto& t) { return at::linear(t[0], t[1], t[2]); }},
    {"matmul and relu", {{5, 4}, {4, 3}}, [](auto& t) { return at::relu(at::matmul(t[0], t[1])); }},
    {"conv2d", {{5, 2, 4, 4}, {3, 2, 3, 3}}, [](auto& t) { return at::conv2d(t[0], t[1]); }},
    {"softmax of a product", {{5, 4}, {4, 3}}, [](auto& t) { return at::softmax(at::mm(t[0], t[1]), 1); }},
    {"mse of products",
     {{5, 4}, {4, 3}},
     [](auto& t) { return at::mse_loss(at::mm(t[0], t[1]), at::mm(t[0], t[1]) + 1); }},
    {"a sum of two dtypes", {{5, 4}, {4, 4}}, [](auto& t) { return at::cat({at::mm(t[0], t[1]), t[0]}, 1); }},
};

at::Tensor run(const Case& c, const std::vector<at::Tensor>& inputs) {
  Autocast on;
  return c.call(inputs);
}

TEST(AutocastOnCpu, GivesTheDtypesAndValuesOfPlainTensors) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& c : kCases) {
      std::vector<at::Tensor> plain, cut;
      for (auto& shape : c.shapes) {
        plain.push_back(waves(shape).to(at::kFloat).requires_grad_());
        auto placement = cut.empty() ? Placement(Shard(0)) : Placement(Replicate());
        cut.push_back(distribute_tensor(plain.back().detach(), mesh, {placement}, std::nullopt).requires_grad_());
      }
      auto expected = run(c, plain), actual = run(c, cut);
      EXPECT_EQ(expected.scalar_type(), actual.scalar_type()) << c.name;
      EXPECT_EQ(difference(full_tensor(actual).to(at::kFloat), expected.to(at::kFloat), 2e-2), "") << c.name;
      expected.sum().backward();
      actual.sum().backward();
      EXPECT_EQ(cut[0].grad().scalar_type(), at::kFloat) << c.name;
      EXPECT_EQ(difference(full_tensor(cut[0].grad()), plain[0].grad(), 5e-2), "") << "gradient of " << c.name;
    }
  });
}

}  // namespace
}  // namespace intarsia::tensor_autocast_test
