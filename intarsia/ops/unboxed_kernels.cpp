// The ops of every training step, which have unboxed kernels.

#include <ATen/Operators.h>

#include "intarsia/dispatch/kernel_list.h"
#include "intarsia/dispatch/unboxed_kernels.h"
#include "intarsia/ops/all.h"

namespace intarsia {
namespace {

namespace ops = at::_ops;
using UnboxedOps =
    KernelList<Unboxed,
               // pointwise
               ops::add_Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::div_Tensor, ops::neg, ops::exp, ops::rsqrt,
               ops::pow_Tensor_Scalar, ops::relu, ops::gelu, ops::silu, ops::sigmoid, ops::tanh,
               ops::threshold_backward, ops::gelu_backward, ops::silu_backward, ops::sigmoid_backward,
               ops::tanh_backward, ops::where_self, ops::masked_fill_Scalar,
               // products
               ops::linear, ops::matmul, ops::mm, ops::bmm, ops::addmm,
               ops::_scaled_dot_product_flash_attention_for_cpu,
               ops::_scaled_dot_product_flash_attention_for_cpu_backward,
               // reductions and norms
               ops::sum, ops::sum_dim_IntList, ops::mean, ops::mean_dim, ops::var_correction, ops::_softmax,
               ops::_softmax_backward_data, ops::_log_softmax, ops::_log_softmax_backward_data, ops::native_layer_norm,
               ops::native_layer_norm_backward, ops::native_group_norm, ops::native_group_norm_backward,
               // images
               ops::convolution, ops::convolution_backward, ops::max_pool2d_with_indices,
               ops::max_pool2d_with_indices_backward, ops::avg_pool2d, ops::avg_pool2d_backward,
               // structure
               ops::view, ops::_unsafe_view, ops::expand, ops::t, ops::transpose_int, ops::permute, ops::unsqueeze,
               ops::squeeze_dim, ops::select_int, ops::slice_Tensor, ops::split_Tensor, ops::split_with_sizes, ops::cat,
               ops::stack>;

}  // namespace

void add_unboxed_kernels(RuleTable& t) { UnboxedOps::add_to(t); }

}  // namespace intarsia
