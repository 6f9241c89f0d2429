#include "intarsia/tensor/direct.h"

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/tensor/implicit_moves.h"
#include "intarsia/tensor/kernel.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
namespace {

at::Tensor moved(const Op& op, const at::Tensor& tensor, const Layout* to, const Plan& plan) {
  observe_implicit_move(op.name.c_str(), plan);
  CauseScope cause(op.name.c_str(), true);
  return shards_by(tensor, to, plan)[0];
}

}  // namespace

bool DirectCall::admits(const at::Tensor& tensor) {
  if (!first_) first_ = &tensor;
  if (!is_dtensor(tensor)) return !tensor.defined() || (tensor.numel() == 1 && tensor.is_cpu());
  auto& own = meta_of(tensor).layout->mesh();
  if (mesh_ && *mesh_ != own) return false;
  mesh_ = &own;
  return true;
}

bool DirectCall::is_known() {
  decision_ = op_.cache.find(key);
  if (!decision_ || !decision_->direct) return false;
  if (!op_.rule || !op_.rule->local) return true;
  if (!is_dtensor(*first_)) return false;
  auto& shard = meta_of(*first_).shards()[0];
  return shard.is_contiguous() && !shard.is_conj();
}

at::Tensor DirectCall::next_local(const at::Tensor& tensor) {
  auto operand = operand_++;
  if (!tensor.defined()) return tensor;
  if (operand == op_.shown) shown_ = tensor;
  auto here = [&] {
    if (!is_dtensor(tensor)) return tensor;
    auto& plan = decision_->plans[operand];
    return plan.steps.empty() ? meta_of(tensor).shards()[0] : moved(op_, tensor, decision_->in[operand], plan);
  };
  auto local = here();
  keys_ = keys_ | local.key_set();
  return local;
}

c10::SymIntArrayRef DirectCall::local_sizes(c10::SymIntArrayRef sizes, int arg) const {
  return is_size(arg) ? c10::fromIntArrayRefKnownNonNegative(decision_->local_shape) : sizes;
}

c10::SymInt DirectCall::local_size(c10::SymInt size, int arg) const {
  return is_size(arg) ? c10::SymInt(decision_->local_shape[0]) : size;
}

bool DirectCall::goes_to_cpu() const { return keys_ - kAboveKernels == kCpu; }

at::Tensor DirectCall::next_result(at::Tensor local) {
  auto r = result_++;
  if (!op_.written.empty()) {
    meta_of(shown_).written();
    return std::move(shown_);
  }
  auto& form = decision_->outputs[r];
  if (!form.defined) return local;
  auto views = op_.views_arg[op_.views_arg.size() == 1 ? 0 : r] >= 0;  // one return may be a list
  if (!views && local.strides() != at::IntArrayRef(decision_->local_strides[r])) {
    follow_strides(local, form.strides, decision_->contiguous[r]);
  }
  auto meta = c10::make_intrusive<DTensorMeta>(Shards{std::move(local)}, decision_->out[r]);
  if (views) meta->view_memory_of(shared_meta_of(shown_));
  return wrap(std::move(meta), form.sizes, form.strides, c10::scalarTypeToTypeMeta(form.dtype));
}

}  // namespace intarsia
