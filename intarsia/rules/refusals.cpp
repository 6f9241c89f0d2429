// Ops that look at values and refuse some: places that are out of range, zeros to divide by, numbers that are no
// probabilities. See Note [Errors that one rank sees].

#include <numeric>

#include "intarsia/rules/families.h"

namespace intarsia {
namespace {

using Inputs = std::vector<size_t>;

void refuse(RuleTable& t, std::initializer_list<const char*> ops, Inputs inputs) {
  for (auto* op : ops) t[std::string("aten::") + op].refusable = [inputs](const OpCall&) { return inputs; };
}

// The index tensors of x[i, :, j].
Inputs all_indices(const OpCall& call) {
  Inputs inputs(call.arg("indices").toListRef().size());
  std::iota(inputs.begin(), inputs.end(), 1);
  return inputs;
}

// Whole numbers cannot be divided by zero.
Inputs divisor(const OpCall& call) {
  auto whole = call.outputs[0].defined && c10::isIntegralType(call.outputs[0].dtype, /*includeBool=*/true);
  return whole && call.inputs.size() > 1 ? Inputs{1} : Inputs{};
}

}  // namespace

void add_refusals(RuleTable& t) {
  refuse(t, {"gather", "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two",
             "scatter_add", "index_add", "index_copy", "index_fill.int_Scalar", "index_fill.int_Tensor", "index_reduce",
             "index_select", "take", "embedding", "embedding_renorm", "nll_loss_forward", "nll_loss2d_forward",
             "multi_margin_loss", "multilabel_margin_loss_forward", "linalg_lu_solve", "lu_unpack", "linalg_ldl_solve"},
         {1});
  for (auto* op : {"aten::index.Tensor", "aten::index_put", "aten::_index_put_impl"}) t[op].refusable = all_indices;
  for (auto* op : {"aten::floor_divide", "aten::remainder.Tensor", "aten::fmod.Tensor", "aten::div.Tensor_mode"}) {
    t[op].refusable = divisor;
  }
  refuse(t, {"binary_cross_entropy", "cholesky", "cholesky_inverse", "linalg_eig", "_linalg_eigvals", "_linalg_eigh",
             "_linalg_svd", "linalg_pinv.atol_rtol_tensor"},
         {0});
}

}  // namespace intarsia
