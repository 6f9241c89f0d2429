#pragma once
// The family: every op on images, volumes and sequences that exchanges rows, once or more, for tests that hold for all
// of them.

#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia::family {

namespace F = torch::nn::functional;
using Ints = std::vector<int64_t>;
using Results = std::vector<at::Tensor>;

// An op on an image of four channels.
struct Member {
  std::string name;
  int64_t dims;  // of the image
  std::function<Results(const at::Tensor&)> op;
  int64_t least = 1;         // rows that the plain op needs
  bool keeps_layout = true;  // the results lie as the image does
  bool rounds = false;       // whole numbers are rounded in a way that only the plain op knows
};

// The same weight on every rank, of the type of the image.
inline at::Tensor weight_for(const at::Tensor& x, const Ints& shape) {
  int64_t count = c10::multiply_integers(shape);
  auto size = at::isIntegralType(x.scalar_type(), true) ? 4 : 0.5;
  auto weight = (at::arange(count, at::kDouble).mul(0.7).sin() * size).view(shape).to(x.scalar_type());
  return is_dtensor(x) ? distribute_tensor(weight, mesh_of(x), Placements(mesh_of(x).ndim(), Replicate()), std::nullopt)
                       : weight;
}

struct Conv {
  int64_t kernel, stride, padding, dilation = 1, groups = 1, outputs = 8;
};

inline Results convolve(const at::Tensor& x, int64_t dims, const Conv& c) {
  Ints shape(dims + 2, c.kernel), stride(dims, c.stride), padding(dims, c.padding), dilation(dims, c.dilation);
  shape[0] = c.outputs, shape[1] = 4 / c.groups;
  auto weight = weight_for(x, shape), bias = weight_for(x, {c.outputs});
  if (dims == 1) return {at::conv1d(x, weight, bias, stride, padding, dilation, c.groups)};
  if (dims == 2) return {at::conv2d(x, weight, bias, stride, padding, dilation, c.groups)};
  return {at::conv3d(x, weight, bias, stride, padding, dilation, c.groups)};
}

inline Results convolve_transposed(const at::Tensor& x, int64_t dims, const Conv& c, int64_t more = 0) {
  Ints shape(dims + 2, c.kernel), stride(dims, c.stride), padding(dims, c.padding), dilation(dims, c.dilation),
      output(dims, more);
  shape[0] = 4, shape[1] = c.outputs / c.groups;
  auto weight = weight_for(x, shape), bias = weight_for(x, {c.outputs});
  if (dims == 1) return {at::conv_transpose1d(x, weight, bias, stride, padding, output, c.groups, dilation)};
  if (dims == 2) return {at::conv_transpose2d(x, weight, bias, stride, padding, output, c.groups, dilation)};
  return {at::conv_transpose3d(x, weight, bias, stride, padding, output, c.groups, dilation)};
}

template <class Pool>
Results both(Pool pool) {
  auto [values, indices] = pool;
  return {values, indices};
}

inline void add_convolutions(std::vector<Member>& all) {
  for (int64_t dims = 1; dims <= 3; ++dims) {
    auto add = [&, dims](const char* name, Conv c) {
      all.push_back(
          {c10::str("conv", dims, "d", name), dims, [=](const at::Tensor& x) { return convolve(x, dims, c); }});
    };
    auto add_transposed = [&, dims](const char* name, Conv c, int64_t more) {
      all.push_back({c10::str("conv_transpose", dims, "d", name), dims,
                     [=](const at::Tensor& x) { return convolve_transposed(x, dims, c, more); }});
    };
    add("", {3, 1, 1}), add(", strided", {3, 2, 1}), add(", dilated", {3, 1, 2, 2}), add(", even", {2, 1, 1});
    add(", wide", {7, 1, 3}), add(", groups", {3, 1, 1, 1, 2}), add(", depthwise", {3, 1, 1, 1, 4});
    add_transposed("", {3, 1, 1}, 0), add_transposed(", strided", {4, 3, 1}, 2),
        add_transposed(", dilated", {3, 1, 1, 2}, 1);
    add_transposed(", groups", {3, 2, 1, 1, 2}, 1);
  }
  all.push_back({"conv2d, same", 2, [](const at::Tensor& x) -> Results {
                   return {at::conv2d(x, weight_for(x, {4, 4, 4, 3}), {}, 1, "same", 2)};
                 }});
}

inline void add_pools(std::vector<Member>& all) {
  auto add = [&](const char* name, int64_t dims, auto op, int64_t least = 1) {
    all.push_back({name, dims, op, least});
  };
  auto one = [](auto op) { return [=](const at::Tensor& x) -> Results { return {op(x)}; }; };
  add("max_pool1d", 1, one([](auto& x) { return at::max_pool1d(x, {3}, {2}, {1}, {1}, true); }));
  add("max_pool1d, indices", 1,
      [](const at::Tensor& x) { return both(at::max_pool1d_with_indices(x, {3}, {1}, {1})); });
  add("max_pool2d, indices", 2,
      [](const at::Tensor& x) { return both(at::max_pool2d_with_indices(x, {3, 2}, {2, 1}, {1, 1})); });
  add("max_pool3d, indices", 3,
      [](const at::Tensor& x) { return both(at::max_pool3d_with_indices(x, {3, 2, 3}, {1, 2, 2}, {1, 1, 1})); });
  add("avg_pool1d", 1, one([](auto& x) { return at::avg_pool1d(x, {3}, {2}, {1}, true); }));
  add("avg_pool2d", 2, one([](auto& x) { return at::avg_pool2d(x, {3, 3}, {1, 2}, {1, 1}, true, false); }));
  add("avg_pool3d", 3, one([](auto& x) { return at::avg_pool3d(x, {3, 2, 3}, {1, 2, 2}, {1, 1, 1}); }));
  add("lp_pool1d", 1, one([](auto& x) { return F::lp_pool1d(x, F::LPPool1dFuncOptions(2, 2).stride(1)); }), 2);
  add("lp_pool2d", 2, one([](auto& x) { return F::lp_pool2d(x, F::LPPool2dFuncOptions(2, {2, 2}).stride(1)); }), 2);
  add("lp_pool3d", 3, one([](auto& x) { return F::lp_pool3d(x, F::LPPool3dFuncOptions(2, {2, 2, 2}).stride(1)); }), 2);
  add("adaptive_avg_pool1d", 1, one([](auto& x) { return at::adaptive_avg_pool1d(x, {5}); }));
  add("adaptive_avg_pool2d", 2, one([](auto& x) { return at::adaptive_avg_pool2d(x, {2, 5}); }));
  add("adaptive_avg_pool3d", 3, one([](auto& x) { return at::adaptive_avg_pool3d(x, {2, 5, 3}); }));
  add("adaptive_max_pool1d", 1, [](const at::Tensor& x) { return both(at::adaptive_max_pool1d(x, {5})); });
  add("adaptive_max_pool2d", 2, [](const at::Tensor& x) { return both(at::adaptive_max_pool2d(x, {2, 5})); });
  add("adaptive_max_pool3d", 3, [](const at::Tensor& x) { return both(at::adaptive_max_pool3d(x, {2, 5, 3})); });
}

inline void add_pads(std::vector<Member>& all) {
  auto pad = [&](const char* name, F::PadFuncOptions::mode_t mode, int64_t least) {
    for (int64_t dims = 1; dims <= 3; ++dims) {
      Ints amounts = {1, 2, 0, 1, 2, 1};
      amounts.resize(2 * dims);
      auto op = [=](const at::Tensor& x) -> Results { return {F::pad(x, F::PadFuncOptions(amounts).mode(mode))}; };
      all.push_back({c10::str("pad", dims, "d, ", name), dims, op, least});
    }
  };
  pad("constant", torch::kConstant, 1), pad("reflect", torch::kReflect, 3), pad("replicate", torch::kReplicate, 1);
  pad("circular", torch::kCircular, 2);
}

inline void add_interpolations(std::vector<Member>& all) {
  using Options = F::InterpolateFuncOptions;
  auto add = [&](const char* name, int64_t dims, Options options) {
    for (bool larger : {true, false}) {
      Ints size = larger ? Ints{5, 7, 4} : Ints{2, 3, 2};
      auto sized = options.size(Ints(size.begin(), size.begin() + dims));
      all.push_back({c10::str(name, larger ? ", up" : ", down"), dims,
                     [=](const at::Tensor& x) -> Results { return {F::interpolate(x, sized)}; }, 1, true,
                     options.mode().index() > 0});
    }
  };
  for (int64_t dims = 1; dims <= 3; ++dims)
    add(dims == 1 ? "nearest1d" : dims == 2 ? "nearest2d" : "nearest3d", dims, Options().mode(torch::kNearest));
  all.push_back({"exact1d", 1, [](const at::Tensor& x) -> Results { return {at::_upsample_nearest_exact1d(x, {5})}; }});
  all.push_back(
      {"exact2d", 2, [](const at::Tensor& x) -> Results { return {at::_upsample_nearest_exact2d(x, {5, 2})}; }});
  all.push_back(
      {"exact3d", 3, [](const at::Tensor& x) -> Results { return {at::_upsample_nearest_exact3d(x, {2, 5, 4})}; }});
  for (bool align : {false, true}) {
    add(align ? "linear, aligned" : "linear", 1, Options().mode(torch::kLinear).align_corners(align));
    add(align ? "bilinear, aligned" : "bilinear", 2, Options().mode(torch::kBilinear).align_corners(align));
    add(align ? "bicubic, aligned" : "bicubic", 2, Options().mode(torch::kBicubic).align_corners(align));
    add(align ? "trilinear, aligned" : "trilinear", 3, Options().mode(torch::kTrilinear).align_corners(align));
  }
  add("bilinear, antialiased", 2, Options().mode(torch::kBilinear).align_corners(false).antialias(true));
  add("bicubic, antialiased", 2, Options().mode(torch::kBicubic).align_corners(false).antialias(true));
}

inline void add_pixels(std::vector<Member>& all) {
  all.push_back({"pixel_shuffle", 2, [](const at::Tensor& x) -> Results { return {at::pixel_shuffle(x, 2)}; }});
  all.push_back({"pixel_unshuffle", 2, [](const at::Tensor& x) -> Results {
                   return {at::pixel_unshuffle(F::interpolate(x, F::InterpolateFuncOptions().size(Ints{6, 9})), 3)};
                 }});
}

inline void add_unfolding(std::vector<Member>& all) {
  all.push_back({"unfold", 2,
                 [](const at::Tensor& x) -> Results { return {at::im2col(x, {3, 2}, {1, 1}, {1, 1}, {1, 2})}; }, 1,
                 false});
  all.push_back({"unfold and fold", 2,
                 [](const at::Tensor& x) -> Results {
                   auto columns = at::im2col(x, {3, 3}, {1, 1}, {1, 1}, {1, 1});
                   return {at::col2im(columns, x.sizes().slice(x.dim() - 2), {3, 3}, {1, 1}, {1, 1}, {1, 1})};
                 },
                 1, false});
  all.push_back({"max_unpool1d", 1,
                 [](const at::Tensor& x) -> Results {
                   auto [values, indices] = at::max_pool1d_with_indices(x, {2}, {1});
                   return {F::max_unpool1d(values, indices, F::MaxUnpool1dFuncOptions(2).stride(1))};
                 },
                 2, false});
  all.push_back({"max_unpool2d", 2,
                 [](const at::Tensor& x) -> Results {
                   auto [values, indices] = at::max_pool2d_with_indices(x, {2, 2}, {1, 1});
                   return {F::max_unpool2d(values, indices, F::MaxUnpool2dFuncOptions(2).stride(1))};
                 },
                 2, false});
  all.push_back({"max_unpool3d", 3,
                 [](const at::Tensor& x) -> Results {
                   auto [values, indices] = at::max_pool3d_with_indices(x, {2, 2, 2}, {1, 1, 1});
                   return {F::max_unpool3d(values, indices, F::MaxUnpool3dFuncOptions(2).stride(1))};
                 },
                 2, false});
}

inline std::vector<Member> members() {
  std::vector<Member> all;
  add_convolutions(all), add_pools(all), add_pads(all), add_interpolations(all), add_unfolding(all), add_pixels(all);
  return all;
}

}  // namespace intarsia::family
