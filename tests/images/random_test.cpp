// Convolutions of random form, cut at random: values and gradients are those of the plain op.

#include <map>
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/core/mesh.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/dealer.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::images_random_test {
namespace {

using Ints = std::vector<int64_t>;

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  Ints many(int64_t count, int64_t low, int64_t high) {
    Ints values;
    for (int64_t i = 0; i < count; ++i) values.push_back((*this)(low, high));
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

struct Case {
  at::Tensor input, weight, bias;
  Ints stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
  std::string mode;  // "same", "valid", or none: then `padding` says

  at::Tensor run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) const {
    if (!mode.empty()) {
      if (x.dim() == 3) return at::conv1d(x, w, b, stride, mode, dilation, groups);
      if (x.dim() == 4) return at::conv2d(x, w, b, stride, mode, dilation, groups);
      return at::conv3d(x, w, b, stride, mode, dilation, groups);
    }
    return at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups);
  }
  std::string text() const {
    return c10::str("input ", input.sizes(), " weight ", weight.sizes(), bias.defined() ? " bias" : "", " stride ",
                    stride, " padding ", padding, " dilation ", dilation, " output_padding ", output_padding,
                    transposed ? " transposed" : "", " groups ", groups, " ", mode);
  }
};

Case draw(Dice& dice) {
  auto spatial = dice(0, 9) < 2 ? 3 : dice(1, 2);
  Case c;
  c.transposed = dice(0, 2) == 0;
  c.groups = dice(0, 2) == 0 ? dice(2, 4) : 1;
  auto in_channels = c.groups * dice(1, 3), out_channels = c.groups * dice(1, 3);
  c.stride = dice.many(spatial, 1, 3);
  c.padding = dice.many(spatial, 0, 3);
  c.dilation = dice.many(spatial, 1, 2);
  c.output_padding = Ints(spatial, 0);
  if (!c.transposed && dice(0, 4) == 0) {
    c.mode = dice(0, 1) ? "same" : "valid";
    c.padding = Ints(spatial, 0);
    if (c.mode == "same") c.stride = Ints(spatial, 1);
  }
  Ints input = {dice(1, 3), in_channels}, weight = {out_channels, in_channels / c.groups};
  if (c.transposed) weight = {in_channels, out_channels / c.groups};
  for (int64_t d = 0; d < spatial; ++d) {
    auto kernel = dice(1, 4);
    auto reach = (kernel - 1) * c.dilation[d] + 1;
    if (c.transposed) c.output_padding[d] = dice(0, std::max(c.stride[d], c.dilation[d]) - 1);
    auto least = c.transposed || c.mode == "same" ? 1 : std::max<int64_t>(1, reach - 2 * c.padding[d]);
    while (c.transposed && (least - 1) * c.stride[d] - 2 * c.padding[d] + reach + c.output_padding[d] < 1) ++least;
    input.push_back(least + dice(0, spatial == 1 ? 14 : 7));
    weight.push_back(kernel);
  }
  auto options = at::TensorOptions().dtype(at::kDouble);
  c.input = at::randn(input, options);
  c.weight = at::randn(weight, options);
  if (dice(0, 1)) c.bias = at::randn({out_channels}, options);
  return c;
}

// Mostly cuts of the image; pending sums and other cuts now and then.
Placements draw_input(Dice& dice, int64_t axes, int64_t ndim) {
  Placements placements;
  for (int64_t axis = 0; axis < axes; ++axis) {
    auto kind = dice(0, 11);
    if (kind < 7) {
      placements.push_back(Shard(dice(2, ndim - 1)));
    } else if (kind < 9) {
      placements.push_back(Shard(dice(0, 1)));
    } else if (kind < 10) {
      placements.push_back(Partial());
    } else if (kind < 11) {
      placements.push_back(StridedShard(dice(0, ndim - 1), 2));
    } else {
      placements.push_back(Replicate());
    }
  }
  return placements;
}

Placements draw_parameter(Dice& dice, int64_t axes, int64_t dims) {
  Placements placements;
  for (int64_t axis = 0; axis < axes; ++axis) {
    placements.push_back(dice(0, 2) ? Placement(Replicate()) : Placement(Shard(dice(0, dims - 1))));
  }
  return placements;
}

at::Tensor leaf(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().requires_grad_() : tensor; }

// Which of input, weight and bias are asked for a gradient; at least one.
std::vector<at::Tensor> gradients(const at::Tensor& output, const at::Tensor& grad, std::vector<at::Tensor> leaves,
                                  int64_t wanted) {
  std::vector<at::Tensor> asked;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].defined() && (wanted >> i & 1)) asked.push_back(leaves[i]);
  }
  return torch::autograd::grad({output}, asked, {grad});
}

void compare(const Case& c, Dice& dice, const DeviceMesh& mesh, const Placements& in, const Placements& w,
             const Placements& b) {
  auto wanted = dice(0, 2) ? 7 : 1 << dice(0, 1);
  auto mask = [&](const at::Tensor& t, int bit) { return t.defined() && (wanted >> bit & 1) ? leaf(t) : t; };

  auto x = mask(c.input, 0), weight = mask(c.weight, 1), bias = mask(c.bias, 2);
  auto expected = c.run(x, weight, bias);
  auto grad = at::randn(expected.sizes(), expected.options());
  auto expected_grads = gradients(expected, grad, {x, weight, bias}, wanted);

  auto dx = mask(lay_out(c.input, mesh, in), 0), dw = mask(lay_out(c.weight, mesh, w), 1);
  auto db = c.bias.defined() ? mask(lay_out(c.bias, mesh, b), 2) : at::Tensor();
  auto actual = c.run(dx, dw, db);
  ASSERT_EQ(difference(full_tensor(actual).detach(), expected.detach(), 1e-11), "");
  auto upstream = lay_out(grad, mesh, draw_input(dice, mesh.ndim(), grad.dim()));
  auto grads = gradients(actual, upstream, {dx, dw, db}, wanted);
  ASSERT_EQ(grads.size(), expected_grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    ASSERT_EQ(difference(full_tensor(grads[i]), expected_grads[i], 1e-11), "") << "gradient " << i;
  }
}

// How often the cases met what they are to meet.
using Coverage = std::map<std::string, int64_t>;

void count(Coverage& met, const Case& c, const DeviceMesh& mesh, const Placements& in, const Placements& w) {
  auto spatial = c.input.dim() - 2;
  ++met[std::to_string(spatial) + "d"];
  met["transposed"] += c.transposed;
  met["groups"] += c.groups > 1;
  met["depthwise"] += c.groups > 1 && c.groups == c.input.size(1);
  met["2-D mesh"] += mesh.ndim() > 1;
  if (!c.mode.empty()) ++met[c.mode + " padding"];
  for (auto& placement : w) met["weight cut"] += cut_dim(placement) >= 0;
  std::vector<int64_t> parts(c.input.dim(), 1);
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (is_shard(in[axis])) parts[cut_dim(in[axis])] *= mesh.size(axis);
  }
  met["batch cut"] += parts[0] > 1;
  met["channels cut"] += parts[1] > 1;
  bool several = false;
  for (int64_t d = 2, cuts = 0; d < c.input.dim(); ++d) {
    met["even kernel"] += c.weight.size(d) % 2 == 0;
    met["dilation"] += c.dilation[d - 2] > 1 && c.weight.size(d) > 1;
    if (parts[d] == 1) continue;
    several = several || ++cuts > 1;
    auto shard = (c.input.size(d) + parts[d] - 1) / parts[d];
    auto halo = (c.weight.size(d) - 1) * c.dilation[d - 2];
    met["image smaller than the mesh"] += c.input.size(d) < parts[d];
    met["halo over several hops"] += !c.transposed && c.stride[d - 2] == 1 && (halo + 1) / 2 > shard;
  }
  met["several image dims cut"] += several;
}

void check(const Case& c, Dice& dice, const DeviceMesh& mesh, Coverage& met) {
  auto in = draw_input(dice, mesh.ndim(), c.input.dim());
  auto w = draw_parameter(dice, mesh.ndim(), 2), b = draw_parameter(dice, mesh.ndim(), 1);
  SCOPED_TRACE(c.text() + " on " + mesh.text() + " input " + str(in) + " weight " + str(w) + " bias " + str(b));
  count(met, c, mesh, in, w);
  try {
    compare(c, dice, mesh, in, w, b);
  } catch (const c10::Error& error) {
    FAIL() << error.what_without_backtrace();
  }
}

TEST(Convolution, OfRandomFormCutAtRandomIsThePlainOne) {
  const char* given = std::getenv("INTARSIA_SEED");
  uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 20261115;
  std::cout << "seed " << seed << " (INTARSIA_SEED)\n";
  at::manual_seed(seed);
  seed_dealer(seed);
  Dice dice(seed);
  const int kCases = process_world() ? 200 : 5200;
  int64_t done = 0;
  Coverage met;
  while (done < kCases && !testing::Test::HasFatalFailure()) {
    for_each_world({2, 3, 4, 6}, [&](int64_t n) {
      for (auto& shape : mesh_shapes(n)) {
        if (testing::Test::HasFatalFailure()) return;
        check(draw(dice), dice, init_device_mesh(at::kCPU, shape), met);
        ++done;
      }
    });
  }
  std::cout << done << " convolutions compared\n";
  for (auto what : {"1d", "2d", "3d", "transposed", "groups", "depthwise", "2-D mesh", "same padding", "valid padding",
                    "weight cut", "batch cut", "channels cut", "even kernel", "dilation", "image smaller than the mesh",
                    "halo over several hops", "several image dims cut"}) {
    std::cout << "  " << what << ": " << met[what] << "\n";
    if (!process_world()) {
      EXPECT_GE(met[what], kCases / 50) << what;
    }
  }
}

}  // namespace
}  // namespace intarsia::images_random_test
