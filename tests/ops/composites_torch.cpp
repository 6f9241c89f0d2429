// torch::, but for its structure.

#include <ATen/ATen.h>

#include "tests/ops/composites.h"

namespace intarsia {
namespace {

using Ints = std::vector<int64_t>;

void add_names_of_others(const AddCalls& each) {
  each({"absolute", "arctan", "arcsinh", "negative", "positive", "fix", "square", "selu", "relu6", "isfinite", "isreal",
        "log_sigmoid"},
       {x({5, 3})});
  each({"arccos", "arcsin", "arctanh"}, {unit({5, 3})});
  each({"arccosh"}, {pos({5, 3}) + 1});
  each({"arctan2"}, {x({5, 3}), pos({5, 3})});
  each({"item", "is_nonzero"}, {x({1})});
  each({"subtract.Tensor"}, {x({5, 3}), x({3}), 2});
  each({"multiply.Tensor", "greater.Tensor", "greater_equal.Tensor", "less.Tensor", "less_equal.Tensor",
        "not_equal.Tensor", "max.other", "min.other"},
       {x({5, 3}), x({3})});
  each({"divide.Tensor", "true_divide.Tensor"}, {x({5, 3}), pos({5, 3})});
  each({"divide.Tensor_mode"}, {x({5, 3}), pos({5, 3}), "floor"});
  each({"divide.Scalar", "true_divide.Scalar", "multiply.Scalar", "greater.Scalar", "greater_equal.Scalar",
        "less.Scalar", "less_equal.Scalar", "not_equal.Scalar"},
       {x({5, 3}), 0.75});
  each({"divide.Scalar_mode"}, {x({5, 3}), 0.75, "trunc"});
  each({"subtract.Scalar"}, {x({5, 3}), 0.75, 2});
  each({"float_power.Tensor_Tensor"}, {pos({5, 3}), x({3})});
  each({"float_power.Tensor_Scalar"}, {pos({5, 3}), 1.5});
  each({"float_power.Scalar"}, {1.5, x({5, 3})});
  each({"clip"}, {x({5, 3}), -0.5, kNone});
  each({"clip.Tensor"}, {x({5, 3}), -pos({3}), pos({5, 3})});
  each({"isclose"}, {x({5, 3}), x({5, 3}), 0.3, 0.2, false});
  each({"where"}, {x({5, 3}) > 0});
  each({"where.Scalar"}, {x({5, 3}) > 0, 1.5, -2.5});
  each({"where.ScalarSelf"}, {x({5, 3}) > 0, 1.5, x({5, 3})});
  each({"where.ScalarOther"}, {x({5, 3}) > 0, x({5, 3}), 1.5});
  each({"type_as"}, {x({5, 3}), x({2})});
}

void add_reductions(const AddCalls& each) {
  each({"std", "var"}, {x({5, 3}), true});
  each({"std_mean", "var_mean"}, {x({5, 3}), false});
  for (int64_t dim : {0, 1}) {
    each({"std.dim", "var.dim", "std_mean.dim", "var_mean.dim"}, {x({5, 3}), Ints{dim}, true, false});
    each({"nanmean"}, {x({5, 3}), Ints{dim}, true, kNone});
    each({"argsort"}, {x({5, 3}), dim, true});
    each({"argsort.stable"}, {x({5, 3}), true, dim, false});
    each({"quantile", "nanquantile"}, {x({5, 3}), at::tensor({0.1, 0.7}, at::kDouble), dim, false, "linear"});
    each({"quantile.scalar", "nanquantile.scalar"}, {x({5, 3}), 0.4, dim, true, "higher"});
    each({"trapezoid.dx", "trapz.dx", "cumulative_trapezoid.dx"}, {x({5, 3}), 0.5, dim});
    each({"diff"}, {x({5, 3}), 1, dim, kNone, kNone});
    each({"gradient.scalarint"}, {x({5, 3}), 0.5, dim, 1});
    each({"take_along_dim"}, {x({5, 3}), below(3, {5, 3}), dim});
    each({"cosine_similarity"}, {x({5, 3}), x({5, 3}), dim, 1e-8});
    each({"gather_backward"}, {x({5, 3}), x({5, 3}), dim, below(3, {5, 3}), false});
    each({"index_select_backward"}, {dim ? x({5, 4}) : x({4, 3}), Ints{5, 3}, dim, below(3, {4})});
    each({"repeat_interleave.self_int"}, {x({5, 3}), 2, dim, kNone});
    each({"repeat_interleave.self_Tensor"}, {x({5, 3}), below(3, {dim ? 3 : 5}), dim, kNone});
  }
  each({"msort"}, {x({5, 3})});
  each({"diff"}, {x({5, 3}), 2, 0, x({1, 3}), x({2, 3})});
  each({"trapezoid.x", "trapz.x", "cumulative_trapezoid.x"}, {x({5, 3}), at::arange(3, at::kDouble), 1});
  each({"cov"}, {x({5, 3}), 1, kNone, kNone});
  each({"cov"}, {x({5, 3}), 0, below(3, {3}) + 1, pos({3})});
  each({"corrcoef"}, {x({5, 3})});
  each({"frobenius_norm.dim"}, {x({5, 3}), Ints{0, 1}, false});
  each({"norm_except_dim"}, {x({5, 3}), 2, 0});
  each({"sum_to_size"}, {x({5, 3}), Ints{1, 3}});
  each({"argwhere"}, {below(2, {5, 3})});
  each({"nonzero_numpy"}, {below(2, {5, 3})});
  each({"gradient.scalararray"}, {x({5, 3}), 0.5, Ints{0, 1}, 2});
  each({"gradient.array"}, {x({5, 3}), Ints{0, 1}, 1});
  each({"gradient.scalarrayint"}, {x({5, 3}), c10::List<at::Scalar>({0.5, 1.5}), kNone, 1});
  each({"gradient.scalarrayarray"}, {x({5, 3}), c10::List<at::Scalar>({0.5, 1.5}), Ints{0, 1}, 1});
  c10::List<at::Tensor> places({at::arange(5, at::kDouble) * 0.5, at::arange(3, at::kDouble)});
  each({"gradient.tensorarrayint"}, {x({5, 3}), places, kNone, 1});
  each({"gradient.tensorarray"}, {x({5, 3}), places, Ints{0, 1}, 1});
  each({"histogramdd"}, {x({5, 2}), Ints{3, 2}, kNone, kNone, false});
  each({"histogramdd.int_bins"}, {x({5, 2}), 3, kNone, kNone, true});
  each({"histogramdd.TensorList_bins"}, {x({5, 2}), places, kNone, kNone, false});
}

void add_products(const AddCalls& each) {
  each({"inner"}, {x({5, 3}), x({4, 3})});
  each({"outer", "ger"}, {x({5}), x({3})});
  each({"kron"}, {x({5, 3}), x({2, 3})});
  each({"cross"}, {x({5, 3}), x({5, 3}), 1});
  each({"tensordot"}, {x({5, 3, 2}), x({2, 3, 4}), Ints{1, 2}, Ints{1, 0}});
  each({"chain_matmul"}, {c10::List<at::Tensor>({x({5, 3}), x({3, 2}), x({2, 4})})});
  each({"einsum"}, {"ij,kj->ik", c10::List<at::Tensor>({x({5, 3}), x({4, 3})}), kNone});
  each({"matmul"}, {x({5, 3}), x({3, 2})});
  each({"linear"}, {x({5, 3}), x({2, 3}), x({2})});
  each({"bilinear"}, {x({5, 3}), x({5, 2}), x({4, 3, 2}), x({4})});
  each({"cdist"}, {x({5, 3}), x({4, 3}), 2.0, kNone});
  each({"pdist"}, {x({5, 3}), 2.0});
  each({"pairwise_distance"}, {x({5, 3}), x({5, 3}), 2.0, 1e-6, false});
  each({"vander"}, {x({5}), 3, true});
  each({"vander"}, {x({5}), kNone, false});
  each({"cartesian_prod"}, {c10::List<at::Tensor>({x({5}), x({3})})});
  each({"combinations"}, {x({5}), 2, false});
}

}  // namespace

void add_torch_composites(std::vector<Sample>& list) {
  AddCalls each{list};
  add_names_of_others(each);
  add_reductions(each);
  add_products(each);
  each({"stft"}, {x({3, 20}), 8, 4, 6, pos({6}), false, true, true, kNone});
  each({"stft.center"}, {x({3, 20}), 8, 4, kNone, kNone, true, "reflect", true, true, true, kNone});
  each({"istft"}, {at::complex(x({3, 5, 6}), x({3, 5, 6})), 8, 4, kNone, kNone, true, false, true, kNone, false});
}

}  // namespace intarsia
