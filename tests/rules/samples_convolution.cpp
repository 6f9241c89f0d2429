#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {

void add_convolution_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  using Ints = std::vector<int64_t>;
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
                      {x(out.sizes().vec()), x(input), x(weight), Ints{channels}, stride,
                       padding, ones, transposed, list.back().args[7], groups, mask}});
    }
  };
  convolution({3, 5, 6, 7}, {4, 5, 3, 2}, 1, false);
  convolution({3, 5, 6, 7}, {5, 2, 3, 3}, 1, true);
  convolution({2, 6, 9}, {6, 1, 3}, 6, false);   // depthwise
  convolution({2, 8, 9}, {4, 2, 3}, 4, false);   // two channels to one, four times
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
  list.push_back({"aten::avg_pool3d_backward",
                  {x({3, 2, 2, 3, 2}), x({3, 2, 4, 5, 4}), threes, ones, zeros, false, true, none}});

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
      for (auto op : {"upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"}) add(op, true);
    }
    list.push_back({"aten::replication_pad" + d, {x(image), Ints(2 * n, 2)}});
  }
}

}  // namespace intarsia
