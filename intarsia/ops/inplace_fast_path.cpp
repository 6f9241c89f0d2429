// The in-place ops of optimizers, which have a fast path for tensors of one layout.

#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>

#include "intarsia/dispatch/inplace_fast_path.h"
#include "intarsia/dispatch/kernel_list.h"
#include "intarsia/ops/all.h"

namespace intarsia {
namespace {

namespace ops = at::_ops;
using InplaceOps = KernelList<InplaceFastPath, ops::add__Tensor, ops::sub__Tensor, ops::mul__Tensor, ops::div__Tensor,
                              ops::addcmul_, ops::addcdiv_, ops::lerp__Scalar>;

}  // namespace

void add_inplace_fast_path(RuleTable& t) { InplaceOps::add_to(t); }

}  // namespace intarsia
