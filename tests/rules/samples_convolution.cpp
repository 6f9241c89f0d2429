#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {

namespace {

using Ints = std::vector<int64_t>;

void add_adaptive_averages(std::vector<Sample>& list) {
  for (size_t n : {2, 3}) {
    auto image = n == 2 ? Ints{3, 5, 6, 7} : Ints{3, 2, 4, 5, 6};
    Ints size(n, 3), result = {3, image[1]};
    result.insert(result.end(), n, 3);
    auto op = "aten::_adaptive_avg_pool" + std::to_string(n) + "d";
    list.push_back({op, {x(image), size}});
    list.push_back({op + "_backward", {x(result), x(image)}});
  }
}

void add_volume_pools(std::vector<Sample>& list) {
  const Ints twos = {2, 2, 2}, zeros = {0, 0, 0}, ones = {1, 1, 1};
  auto image = x({3, 5, 4, 6, 5});
  auto [values, indices] = at::max_pool3d_with_indices(image, twos, twos, zeros, ones, false);
  list.push_back({"aten::max_pool3d_with_indices", {image, twos, twos, ones, ones, true}});
  list.push_back({"aten::max_pool3d_with_indices_backward",
                  {x(values.sizes().vec()), image, twos, twos, zeros, ones, false, indices}});
  list.push_back({"aten::max_unpool3d", {values, indices, Ints{4, 6, 5}, twos, zeros}});
  auto [flat, places] = at::max_pool2d_with_indices(x({3, 5, 6, 4}), {2, 2}, {2, 2}, {0, 0}, {1, 1}, false);
  list.push_back({"aten::max_unpool2d", {flat, places, Ints{6, 4}}});
}

void add_columns(std::vector<Sample>& list) {
  const Ints kernel = {2, 3}, one = {1, 1}, two = {2, 2};
  auto image = x({3, 2, 6, 7});
  auto columns = at::im2col(image, kernel, one, one, two);
  list.push_back({"aten::im2col", {image, kernel, one, one, two}});
  list.push_back({"aten::col2im", {x(columns.sizes().vec()), Ints{6, 7}, kernel, one, one, two}});
}

}  // namespace

void add_convolution_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  // input, weight, groups, transposed; with and without bias
  auto convolution = [&](Ints input, Ints weight, int64_t groups, bool transposed) {
    auto channels = transposed ? weight[1] * groups : weight[0];
    auto stride = Ints(input.size() - 2, 2), padding = Ints(input.size() - 2, 1), ones = Ints(input.size() - 2, 1);
    for (bool bias : {true, false}) {
      list.push_back({"aten::convolution",
                      {x(input), x(weight), bias ? c10::IValue(x({channels})) : none, stride, padding, ones, transposed,
                       padding, groups}});
      if (!transposed) list.back().args[7] = Ints(input.size() - 2, 0);
      if (!bias) continue;
      auto out = at::convolution(x(input), x(weight), {}, stride, padding, ones, transposed,
                                 list.back().args[7].toIntVector(), groups);
      c10::List<bool> mask({true, true, true});
      list.push_back({"aten::convolution_backward",
                      {x(out.sizes().vec()), x(input), x(weight), Ints{channels}, stride, padding, ones, transposed,
                       list.back().args[7], groups, mask}});
    }
  };
  convolution({3, 5, 6, 7}, {4, 5, 3, 2}, 1, false);
  convolution({3, 5, 6, 7}, {5, 2, 3, 3}, 1, true);
  convolution({2, 6, 9}, {6, 1, 3}, 6, false);  // depthwise
  convolution({2, 8, 9}, {4, 2, 3}, 4, false);  // two channels to one, four times
  convolution({2, 4, 5}, {4, 3, 2}, 4, true);
  convolution({1, 2, 4, 5, 3}, {3, 2, 2, 3, 2}, 1, false);

  // pools: batch and channels
  const Ints two = {2, 2}, one = {1, 1}, zero = {0, 0}, threes = {3, 3, 3}, ones = {1, 1, 1}, zeros = {0, 0, 0};
  list.push_back({"aten::max_pool2d_with_indices", {x({3, 5, 6, 7}), two, two, one, one, true}});
  auto [values, indices] = at::max_pool2d_with_indices(x({3, 5, 6, 7}), two, two, zero, one, false);
  list.push_back({"aten::max_pool2d_with_indices_backward",
                  {x(values.sizes().vec()), x({3, 5, 6, 7}), two, two, zero, one, false, indices}});
  list.push_back({"aten::avg_pool2d", {x({3, 5, 6, 7}), two, two, one, true, false, none}});
  list.push_back({"aten::avg_pool2d_backward", {x({3, 5, 3, 3}), x({3, 5, 6, 7}), two, two, zero, false, true, none}});
  list.push_back({"aten::avg_pool3d", {x({3, 2, 4, 5, 4}), threes, ones, ones, false, true, 2}});
  list.push_back(
      {"aten::avg_pool3d_backward", {x({3, 2, 2, 3, 2}), x({3, 2, 4, 5, 4}), threes, ones, zeros, false, true, none}});

  for (size_t n : {2, 3}) {
    auto image = n == 2 ? Ints{3, 5, 6, 7} : Ints{3, 2, 4, 5, 6};
    Ints size(n, 2);
    auto [adapted, where] = n == 2 ? at::adaptive_max_pool2d(x(image), size) : at::adaptive_max_pool3d(x(image), size);
    auto op = "aten::adaptive_max_pool" + std::to_string(n) + "d";
    list.push_back({op, {x(image), size}});
    list.push_back({op + "_backward", {x(adapted.sizes().vec()), x(image), where}});
  }

  // interpolation and padding
  list.push_back({"aten::constant_pad_nd", {x({3, 5, 4}), Ints{1, 2}, 0}});
  list.push_back({"aten::constant_pad_nd", {x({3, 5, 4}), Ints{0, 0, -1, 2}, 1.5}});
  const std::vector<Ints> from = {{6}, {6, 5}, {6, 5, 4}}, to = {{9}, {4, 8}, {9, 4, 5}};
  for (size_t n : {1, 2, 3}) {
    auto sized = [](Ints image) { return image.insert(image.begin(), {3, 2}), image; };
    auto image = sized(from[n - 1]), result = sized(to[n - 1]);
    auto d = std::to_string(n) + "d";
    std::vector<c10::IValue> forward = {x(image), to[n - 1]}, backward = {x(result), to[n - 1], image};
    auto add = [&](const std::string& op, bool aligned) {
      auto f = forward, b = backward;
      if (aligned) f.push_back(false), b.push_back(true);
      for (size_t i = 0; i < n; ++i) f.push_back(none), b.push_back(none);
      list.push_back({"aten::" + op, f}), list.back().whole_numbers = false;
      list.push_back({"aten::" + op + "_backward", b}), list.back().whole_numbers = false;
    };
    add("upsample_nearest" + d, false);
    add("_upsample_nearest_exact" + d, false);
    add(n == 1 ? "upsample_linear1d" : n == 2 ? "upsample_bilinear2d" : "upsample_trilinear3d", true);
    if (n == 2) {
      for (auto op :
           {"upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"})
        add(op, true);
    }
    for (std::string pad : {"replication_pad", "reflection_pad"}) {
      auto grown = image;
      for (size_t i = 2; i < grown.size(); ++i) grown[i] += 4;
      list.push_back({"aten::" + pad + d, {x(image), Ints(2 * n, 2)}});
      list.push_back({"aten::" + pad + d + "_backward", {x(grown), x(image), Ints(2 * n, 2)}});
    }
  }
  add_adaptive_averages(list);
  add_volume_pools(list);
  add_columns(list);
}

}  // namespace intarsia
