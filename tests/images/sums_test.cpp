// Gradients of weights in float are as exact on images of many positions as on those of few: compared with the plain op
// in double.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/world.h"

namespace intarsia::images_sums_test {
namespace {

using Ints = std::vector<int64_t>;

struct Form {
  const char* name;
  Ints input, weight, stride, padding, dilation;
  int64_t groups = 1;
  bool transposed = false;
  Ints output_padding = {0, 0, 0};

  at::Tensor run(const std::vector<at::Tensor>& t) const {
    auto more = Ints(output_padding.begin(), output_padding.begin() + input.size() - 2);
    return at::convolution(t[0], t[1], t[2], stride, padding, dilation, transposed, more, groups);
  }
  int64_t channels() const { return transposed ? weight[1] * groups : weight[0]; }
};

std::vector<Form> forms() {
  return {
      {"downsampling", {5, 3, 128, 512}, {16, 3, 4, 4}, {2, 2}, {0, 0}, {1, 1}},
      {"one sample", {1, 3, 256, 300}, {16, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
      {"dilated, strided", {2, 4, 200, 256}, {8, 4, 3, 2}, {1, 2}, {2, 1}, {2, 1}},
      {"more padding than rows", {1, 2, 3, 250}, {4, 2, 3, 3}, {1, 1}, {150, 1}, {1, 1}},
      {"depthwise", {2, 8, 128, 200}, {8, 1, 5, 5}, {1, 1}, {2, 2}, {1, 1}, 8},
      {"groups", {3, 8, 64, 300}, {16, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
      {"sequence", {1, 4, 60000}, {16, 4, 3}, {1}, {1}, {1}},
      {"volume", {1, 3, 30, 40, 50}, {8, 3, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
      {"transposed", {1, 16, 200, 200}, {16, 3, 2, 3}, {2, 1}, {0, 1}, {1, 2}, 1, true, {1, 0}},
      {"transposed, dilated more than strided",
       {2, 4, 100, 200},
       {4, 3, 2, 3},
       {2, 1},
       {0, 1},
       {1, 2},
       1,
       true,
       {1, 1}},
      {"transposed groups", {2, 4, 150, 128}, {4, 2, 3, 3}, {2, 2}, {1, 1}, {1, 1}, 2, true, {0, 1}},
  };
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
}

void compare(const Form& f, const DeviceMesh& mesh, const Placements& cut, const Placements& weight_cut,
             const Placements& bias_cut) {
  SCOPED_TRACE(std::string(f.name) + " " + str(cut) + " weight " + str(weight_cut) + " on " + mesh.text());
  std::vector<at::Tensor> whole = {at::randn(f.input), at::randn(f.weight), at::randn({f.channels()})}, exact,
                          distributed;
  std::vector<Placements> placements = {cut, weight_cut, bias_cut};
  for (size_t i = 0; i < whole.size(); ++i) {
    exact.push_back(whole[i].to(at::kDouble).requires_grad_());
    distributed.push_back(distribute_tensor(whole[i], mesh, placements[i]).requires_grad_());
  }
  auto out = f.run(exact), cut_out = f.run(distributed);
  auto grad = at::randn(out.sizes());
  auto expected = torch::autograd::grad({out}, exact, {grad.to(at::kDouble)});
  auto actual = torch::autograd::grad({cut_out}, distributed, {distribute_tensor(grad, mesh, placements_of(cut_out))});
  EXPECT_LE(distance(full_tensor(actual[0]), expected[0]), 2e-6) << "of the input";
  EXPECT_LE(distance(full_tensor(actual[1]), expected[1]), 5e-6) << "of the weight";
  EXPECT_LE(distance(full_tensor(actual[2]), expected[2]), 5e-6) << "of the bias";
}

TEST(SumsOverManyPositions, AreRoundedAsThoseOverFew) {
  at::manual_seed(4);
  for_each_world({2}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& f : forms()) {
      auto last = static_cast<int64_t>(f.input.size()) - 1;
      for (auto dim : {int64_t{2}, last}) compare(f, mesh, {Shard(dim)}, {Replicate()}, {Replicate()});
      if (f.input[0] > 1) compare(f, mesh, {Shard(0)}, {Replicate()}, {Replicate()});
      if (f.groups == 1) compare(f, mesh, {Replicate()}, {Shard(f.transposed ? 1 : 0)}, {Shard(0)});
    }
  });
  for_each_world({4}, [](int64_t) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (auto& f : forms()) {
      if (f.input.size() == 4)
        compare(f, mesh, {Shard(2), Shard(3)}, {Replicate(), Replicate()}, {Replicate(), Replicate()});
    }
  });
}

}  // namespace
}  // namespace intarsia::images_sums_test
