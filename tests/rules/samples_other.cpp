#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {

void add_other_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  using Args = std::vector<c10::IValue>;
  using Ints = std::vector<int64_t>;
  auto each = [&](std::initializer_list<const char*> ops, const Args& args, bool values = true) {
    for (std::string op : ops) list.push_back({"aten::" + op, args, values});
  };

  // matmul
  each({"mm"}, {x({5, 3}), x({3, 2})});
  each({"mm"}, {x({1, 5}), x({5, 3})});
  each({"bmm"}, {x({3, 5, 2}), x({3, 2, 4})});
  each({"mv"}, {x({5, 3}), x({3})});
  each({"dot", "vdot"}, {x({5}), x({5})});
  each({"addmm"}, {x({5, 2}), x({5, 3}), x({3, 2}), 2, -1});
  each({"addmm"}, {x({2}), x({5, 3}), x({3, 2}), 1, 1});
  each({"addmm"}, {x({5, 1}), x({5, 3}), x({3, 2}), 1, 1});
  each({"baddbmm"}, {x({5, 4}), x({3, 5, 2}), x({3, 2, 4}), 3, 2});
  each({"addmv"}, {x({5}), x({5, 3}), x({3}), 1, 2});
  each({"addr"}, {x({5, 3}), x({5}), x({3}), 2, 1});

  // reductions
  each({"sum", "prod", "mean"}, {x({5, 3}), none});
  each({"sum.dim_IntList", "nansum", "mean.dim"}, {x({5, 3, 2}), Ints{0, -1}, false, none});
  each({"sum.dim_IntList", "nansum", "mean.dim"}, {x({5, 3, 2}), Ints{1}, true, none});
  each({"sum.dim_IntList", "nansum", "mean.dim"}, {x({5, 3}), none, true, none});
  each({"sum.dim_IntList"}, {x({5, 3}), Ints{0}, false, at::kLong});
  each({"prod"}, {x({5, 3}), at::kLong});
  each({"prod.dim_int"}, {x({5, 3}), 0, false, none});
  each({"prod.dim_int"}, {x({5, 3}), -1, true, none});
  each({"max", "min", "all", "any"}, {x({5, 3})});
  each({"amax", "amin"}, {x({5, 3, 2}), Ints{0, 2}, true});
  each({"amax", "amin"}, {x({5, 3}), Ints{}, false});
  each({"amax", "amin"}, {x({0, 3}), Ints{1}, false});
  each({"all.dim", "any.dim"}, {x({5, 3}), 0, false});
  each({"all.dims", "any.dims"}, {x({5, 3}), Ints{0, 1}, true});
  each({"count_nonzero.dim_IntList"}, {x({5, 3}).relu(), Ints{1}});

  // views
  for (Ints size : {Ints{15}, Ints{3, 5}, Ints{5, 3, 1}, Ints{5, 1, 3}}) {
    each({"view", "_unsafe_view"}, {x({5, 3}), size});
  }
  each({"view", "_unsafe_view"}, {x({8, 6}), Ints{2, 4, 6}});
  each({"view", "_unsafe_view"}, {x({4, 2, 6}), Ints{8, 3, 2}});
  each({"view", "_unsafe_view"}, {x({12}), Ints{4, 3}});
  each({"view", "_unsafe_view"}, {x({2, 6, 4}), Ints{4, 12}});
  each({"view", "_unsafe_view"}, {x({0, 3}), Ints{3, 0}});
  each({"_reshape_alias"}, {x({5, 3}), Ints{15}, Ints{1}});
  each({"permute"}, {x({5, 3, 2}), Ints{2, 0, -2}});
  each({"transpose.int"}, {x({5, 3, 2}), 0, -1});
  each({"t"}, {x({5, 3})});
  each({"t"}, {x({5})});
  each({"unsqueeze"}, {x({5, 3}), 1});
  each({"unsqueeze"}, {x({5, 3}), -1});
  each({"squeeze"}, {x({2, 1, 3})});
  each({"squeeze.dim"}, {x({2, 1, 3}), 1});
  each({"squeeze.dim"}, {x({2, 1, 3}), 0});
  each({"squeeze.dims"}, {x({2, 1}), Ints{}});
  each({"squeeze.dims"}, {x({2, 1, 3, 1}), Ints{0, 1}});
  each({"expand"}, {x({5, 1, 3}), Ints{2, 5, 4, -1}, false});
  each({"select.int"}, {x({5, 3}), 0, 3});
  each({"select.int"}, {x({5, 3}), 1, -1});
  each({"unbind.int"}, {x({3, 5}), 0});
  each({"slice.Tensor"}, {x({5, 3}), 0, 1, 4, 2});
  each({"slice.Tensor"}, {x({5, 3}), 0, none, none, 1});
  each({"slice.Tensor"}, {x({5, 3}), 1, -3, 9, 1});
  each({"split.Tensor", "unsafe_split.Tensor"}, {x({5, 3}), 2, 0});
  each({"split_with_sizes", "unsafe_split_with_sizes"}, {x({5, 3}), Ints{1, 4}, 0});
  each({"alias", "detach", "_conj", "_neg_view"}, {x({5, 3})});
  each({"lift_fresh", "lift"}, {x({5, 3})});  // they hand back their argument: a leaf would become its own result
  for (auto sample = list.end() - 2; sample != list.end(); ++sample) sample->gradient = false;
  each({"view_as_real"}, {at::complex(x({5, 3}), x({5, 3}))});
  each({"view_as_complex"}, {x({5, 3, 2})});
  each({"as_strided"}, {x({5, 3}), Ints{3, 2}, Ints{1, 3}, 1});

  // factories, copies, casts
  for (const auto& shape : {Ints{5, 3}, Ints{4, 2}}) {
    each({"new_zeros", "new_ones"}, {x({5, 3}), shape, none, none, none, none});
    each({"new_empty"}, {x({5, 3}), shape, none, none, none, none}, false);
    each({"new_full"}, {x({5, 3}), shape, 2, none, none, none, none});
  }
  each({"new_empty_strided"}, {x({5, 3}), Ints{3, 2}, Ints{2, 1}, none, none, none, none}, false);
  each({"new_empty_strided"}, {x({5, 3}), Ints{5, 3}, Ints{1, 5}, none, none, none, none}, false);
  each({"zeros_like", "ones_like"}, {x({5, 3}), none, none, none, none, none});
  each({"empty_like"}, {x({5, 3}), none, none, none, none, none}, false);
  each({"full_like"}, {x({5, 3}), 2, none, none, none, none, none});
  each({"clone"}, {x({5, 3}), none});
  each({"lift_fresh_copy"}, {x({5, 3})});
  for (auto to : {at::kBool, at::kLong, at::kInt, at::kHalf, at::kFloat, at::kDouble, at::kComplexDouble}) {
    each({"_to_copy"}, {x({5, 3}), to, none, none, none, false, none});
  }
  each({"copy"}, {x({5, 3}), x({5, 3}), false});
  each({"copy"}, {x({5, 3}), x({3}), false});
  each({"copy"}, {below(9, {5, 3}), x({5, 3}), false});
  each({"zero"}, {x({5, 3})});
  each({"fill.Scalar"}, {x({5, 3}), 2});
  each({"fill.Tensor"}, {x({5, 3}), pos({})});

  // what leaves the world of tensors
  each({"_local_scalar_dense", "is_nonzero"}, {x({})});
  each({"equal"}, {x({5, 3}), x({5, 3})});
  each({"allclose"}, {x({5, 3}), x({5, 3}), 1e-5, 1e-8, false});

  // losses
  each({"_log_softmax", "_softmax"}, {x({5, 3, 2}), 1, false});
  each({"_log_softmax_backward_data", "_softmax_backward_data"}, {x({5, 3, 2}), x({5, 3, 2}), -1, at::kDouble});
  for (int64_t reduction : {at::Reduction::None, at::Reduction::Sum, at::Reduction::Mean}) {
    auto grad = reduction == at::Reduction::None ? x({5, 3}) : at::tensor(1.5);
    each({"mse_loss"}, {x({5, 3}), x({5, 3}), reduction});
    each({"smooth_l1_loss", "huber_loss"}, {x({5, 3}), x({5, 3}), reduction, 2.0});
    each({"mse_loss_backward"}, {grad, x({5, 3}), x({5, 3}), reduction});
    each({"huber_loss_backward", "smooth_l1_loss_backward"}, {grad, x({5, 3}), x({5, 3}), reduction, 2.0});
    list.back().whole_numbers = false;
    auto grad1 = reduction == at::Reduction::None ? x({5}) : at::tensor(1.5);
    auto grad2 = reduction == at::Reduction::None ? x({3, 2, 5}) : at::tensor(1.5);
    each({"nll_loss_forward"}, {x({5, 4}), below(4, {5}), pos({4}), reduction, 1});
    each({"nll_loss_forward"}, {x({5, 4}), below(4, {5}), none, reduction, -100});
    each({"nll_loss_forward"}, {x({4}), below(4, {1}).squeeze(0), none, reduction, -100});
    each({"nll_loss2d_forward"}, {x({3, 4, 2, 5}), below(4, {3, 2, 5}), pos({4}), reduction, 1});
    each({"nll_loss_backward"}, {grad1, x({5, 4}), below(4, {5}), pos({4}), reduction, 1, at::tensor(3.0)});
    each({"nll_loss_backward"}, {grad1, x({5, 4}), below(4, {5}), none, reduction, -100, at::tensor(5.0)});
    each({"nll_loss2d_backward"},
         {grad2, x({3, 4, 2, 5}), below(4, {3, 2, 5}), pos({4}), reduction, 1, at::tensor(3.0)});
  }
}

}  // namespace intarsia
