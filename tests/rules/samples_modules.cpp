// Samples of what rarer modules and functions reach: margins, alignments, grids, transforms, look-ups.

#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {
namespace {

using Args = std::vector<c10::IValue>;
using Ints = std::vector<int64_t>;
const c10::IValue kMissing;

struct Adder {
  std::vector<Sample>& list;
  void operator()(std::initializer_list<const char*> ops, const Args& args) const {
    for (std::string op : ops) list.push_back({"aten::" + op, args});
  }
};

void add_margins(const Adder& each) {
  auto labels =
      at::tensor({3, 0, -1, 1, 2, -1, 0, 0, -1, 3, 2, 1, 0, 3, 2, -1, 1, -1, 0, 0}, at::kLong).reshape({5, 4});
  for (int64_t reduction : {at::Reduction::None, at::Reduction::Sum}) {
    auto grad = reduction == at::Reduction::None ? x({5}) : at::tensor(1.5, at::kDouble);
    each({"multi_margin_loss"}, {x({5, 4}), below(4, {5}), 2, 0.7, kMissing, reduction});
    each({"multi_margin_loss"}, {x({5, 4}), below(4, {5}), 1, 0.7, pos({4}), reduction});
    each({"multi_margin_loss_backward"}, {grad, x({5, 4}), below(4, {5}), 1, 0.7, pos({4}), reduction});
    auto scores = x({5, 4});
    auto [loss, is_target] = at::multilabel_margin_loss_forward(scores, labels, reduction);
    each({"multilabel_margin_loss_forward"}, {scores, labels, reduction});
    each({"multilabel_margin_loss_backward"}, {grad, scores, labels, reduction, is_target});
  }
  auto scores = unit({6, 5, 4}).mul(3).log_softmax(2);
  Ints steps = {6, 5, 6, 4, 6}, counts = {2, 1, 2, 1, 2};
  for (auto& targets : {at::tensor({1, 2, 3, 1, 1, 2, 3, 3, 2, 1}, at::kLong).reshape({5, 2}),
                        at::tensor({1, 2, 3, 1, 2, 3, 2, 1}, at::kLong)}) {
    auto [loss, paths] = at::_ctc_loss(scores, targets, steps, counts, 0, false);
    each({"_ctc_loss"}, {scores, targets, steps, counts, 0, false});
    each.list.back().values = false;  // the second result has places that nobody writes
    each({"_ctc_loss_backward"}, {x({5}), scores, targets, steps, counts, loss, paths, 0, false});
  }
}

void add_fractional_pools(const Adder& each) {
  auto share = [](Ints sizes) { return unit(sizes).abs(); };
  for (const auto& [image, places] :
       {std::pair(x({5, 3, 4, 5}), share({5, 3, 2})), std::pair(x({5, 4, 5}), share({1, 5, 2}))}) {
    each({"fractional_max_pool2d"}, {image, Ints{2, 2}, Ints{2, 3}, places});
    auto [out, at] = at::fractional_max_pool2d(image, {2, 2}, {2, 3}, places);
    each({"fractional_max_pool2d_backward"}, {x(out.sizes().vec()), image, Ints{2, 2}, Ints{2, 3}, at});
  }
  for (const auto& [image, places] :
       {std::pair(x({5, 3, 4, 3, 4}), share({5, 3, 3})), std::pair(x({5, 4, 3, 4}), share({1, 5, 3}))}) {
    each({"fractional_max_pool3d"}, {image, Ints{2, 2, 2}, Ints{2, 1, 2}, places});
    auto [out, at] = at::fractional_max_pool3d(image, {2, 2, 2}, {2, 1, 2}, places);
    each({"fractional_max_pool3d_backward"}, {x(out.sizes().vec()), image, Ints{2, 2, 2}, Ints{2, 1, 2}, at});
  }
}

void add_grids(const Adder& each) {
  c10::List<bool> both({true, true});
  for (int64_t mode : {0, 1}) {
    each({"grid_sampler_2d"}, {x({5, 3, 4, 2}), unit({5, 3, 2, 2}), mode, 0, true});
    each({"grid_sampler_3d"}, {x({3, 2, 4, 2, 3}), unit({3, 3, 2, 2, 3}), mode, 1, false});
    each({"grid_sampler_2d_backward"}, {x({5, 3, 3, 2}), x({5, 3, 4, 2}), unit({5, 3, 2, 2}), mode, 0, true, both});
    each({"grid_sampler_3d_backward"},
         {x({3, 2, 3, 2, 2}), x({3, 2, 4, 2, 3}), unit({3, 3, 2, 2, 3}), mode, 1, false, both});
  }
  each({"affine_grid_generator"}, {x({5, 2, 3}), Ints{5, 2, 3, 4}, true});
  each({"affine_grid_generator"}, {x({3, 3, 4}), Ints{3, 2, 3, 4, 2}, false});
  each({"affine_grid_generator_backward"}, {x({5, 3, 4, 2}), Ints{5, 2, 3, 4}, true});
  auto turning = at::complex(x({5, 4, 3}), x({5, 4, 3}));
  each({"_fft_r2c"}, {x({5, 4, 3}), Ints{1}, 0, true});
  each({"_fft_r2c"}, {x({5, 4, 3}), Ints{0, 2}, 1, false});
  each({"_fft_c2c"}, {turning, Ints{2}, 1, true});
  each({"_fft_c2r"}, {turning, Ints{1}, 2, 6});
}

}  // namespace

void add_module_samples(std::vector<Sample>& list) {
  Adder each{list};
  add_margins(each);
  add_grids(each);
  add_fractional_pools(each);
  each({"log_sigmoid_forward", "_is_all_true", "_is_any_true"}, {x({5, 3})});
  each({"_is_all_true", "_is_any_true"}, {below(2, {5, 3}).to(at::kBool)});
  each({"conj_physical"}, {x({5, 3})});
  auto input = x({5, 3});
  auto [out, buffer] = at::log_sigmoid_forward(input);
  each({"log_sigmoid_backward"}, {x({5, 3}), input, buffer});
  each({"_prelu_kernel_backward"}, {x({5, 3}), x({5, 3}), unit({1, 3})});
  each({"rrelu_with_noise_backward"}, {x({5, 3}), x({5, 3}), pos({5, 3}), 0.1, 0.3, true, false});
  each({"rrelu_with_noise_backward"}, {x({5, 3}), x({5, 3}), pos({5, 3}), 0.1, 0.3, false, false});
  each({"_standard_gamma_grad"}, {pos({5, 3}), pos({5, 3})});
  each({"_add_relu.Tensor"}, {x({5, 3}), x({5, 3}), 2});
  each({"_add_relu.Scalar"}, {x({5, 3}), 0.5, 1});
  auto edges = at::arange(5, at::kDouble);
  for (bool right : {false, true}) {
    each({"bucketize.Scalar"}, {2.0, edges, false, right});
    each({"bucketize.Tensor"}, {pos({5, 3}).floor(), edges, false, right});
    each({"searchsorted.Scalar"}, {edges, 3.0, false, right, kMissing, kMissing});
    each({"isin.Scalar_Tensor"}, {2, below(5, {5, 3}), false, right});
    each({"isin.Tensor_Tensor"}, {below(5, {5, 3}), below(3, {5}), false, right});
  }
  each({"view.dtype"}, {x({5, 4}), at::kLong});
  each({"view.dtype"}, {x({5, 4}), at::kFloat});
  each({"take"}, {x({5, 4}), below(20, {3, 5})});
  each({"renorm"}, {x({5, 4, 3}), 2, 1, 1.5});
  each({"embedding_renorm"}, {x({7, 3}), below(7, {4}), 0.5, 2.0});
  each({"_weight_norm_interface"}, {x({5, 4}), pos({5, 1}), 0});
  each({"_weight_norm_interface"}, {x({5, 4}), pos({1, 4}), 1});
  each({"_weight_norm_interface_backward"}, {x({5, 4}), x({5, 4}), pos({5, 1}), pos({5, 1}), 0});
  auto rows = x({5, 3});
  each({"_pdist_forward"}, {rows, 2.0});
  each({"_pdist_backward"}, {x({10}), rows, 2.0, at::pdist(rows)});
  each({"masked_scatter"}, {x({5, 3}), below(2, {5, 3}).to(at::kBool), x({5, 3})});
  each({"masked_scatter_backward"}, {x({5, 3}), below(2, {5, 3}).to(at::kBool), Ints{4, 4}});
  each({"put"}, {x({5, 3}), below(15, {4}), x({4}), true});
  each({"repeat_interleave.Tensor"}, {below(3, {5}), kMissing});
  each({"_unique"}, {x({5, 3}), true, false});
  each({"unique_dim_consecutive"}, {x({5, 3}), 0, false, false});
  each({"histogram.bin_ct"}, {x({5, 3}), 4, kMissing, kMissing, false});
  each({"histogram.bins_tensor"}, {x({5, 3}), edges, kMissing, false});
}

}  // namespace intarsia
