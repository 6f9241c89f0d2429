#include "intarsia/dispatch/direct.h"

#include <ATen/ATen.h>

#include "intarsia/comm/mix_hash.h"
#include "intarsia/dispatch/moves.h"
#include "intarsia/dispatch/origins.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
bool DirectCall::admits(const at::Tensor& tensor) {
  bool is_first = !first_;
  if (is_first) first_ = &tensor;
  if (!is_dtensor(tensor)) {
    bool is_written = is_first && !op_.written.empty();  // a number that has yet to become distributed
    return !tensor.defined() || (!is_per_rank(tensor) && tensor.numel() == 1 && tensor.is_cpu() && !is_written);
  }
  auto& own = body_of(tensor).layout->mesh();
  if (mesh_ && *mesh_ != own) return false;
  mesh_ = &own;
  return true;
}

bool DirectCall::follows(const Decision* decision) {
  decision_ = decision;
  if (!decision_ || !decision_->direct) return false;
  if (!op_.rule || !op_.rule->local.run) return true;
  if (!is_dtensor(*first_)) return false;
  auto& shard = body_of(*first_).shards()[0];
  return shard.is_contiguous() && !shard.is_conj();
}

at::Tensor DirectCall::next_local(const at::Tensor& tensor) {
  auto operand = operand_++;
  if (!tensor.defined()) return tensor;
  if (operand == op_.shown) shown_ = tensor;
  auto here = [&] {
    if (!is_dtensor(tensor)) return add_origin(tensor, nullptr), tensor;
    auto& body = body_of(tensor);
    add_origin(tensor, &body);
    auto& plan = decision_->plans[operand];
    return plan.steps.empty() ? body.shards()[0] : moved_for(op_.name.c_str(), tensor, decision_->in[operand], plan)[0];
  };
  auto local = here();
  keys_ = keys_ | local.key_set();
  return local;
}

void DirectCall::add_origin(const at::Tensor& tensor, const DTensorBody* body) {
  if (!decision_->what) return;
  last_operand_ = body ? body->origin : Origin{bits_of_number(tensor), 0};
  operands_.hash = mix_hash(operands_.hash, last_operand_.hash);
  if (body) seen_ = body->layout, operands_.call = last_operand_.call;
}

void DirectCall::add_number(const c10::Scalar& number) {
  if (decision_->what) numbers_ = mix_hash(numbers_, bits_of(number));
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
  if (r == 0 && decision_->what) {
    auto what = mix_hash(decision_->what, numbers_);
    made_ = op_.keeps_value ? last_operand_ : calls_on(*mesh_).add(op_.name.c_str(), seen_, what, operands_);
  }
  if (!op_.written.empty()) {
    body_of(shown_).written(made_);
    return std::move(shown_);
  }
  auto& form = decision_->outputs[r];
  if (!form.defined) return local;
  auto views = op_.views_arg[op_.views_arg.size() == 1 ? 0 : r] >= 0;  // one return may be a list
  if (!views && local.strides() != at::IntArrayRef(decision_->local_strides[r])) {
    follow_strides(local, form.strides, decision_->contiguous[r]);
  }
  auto body = c10::make_intrusive<DTensorBody>(Shards{std::move(local)}, decision_->out[r]);
  body->origin = {made_.hash + r, made_.call};
  auto dtype = c10::scalarTypeToTypeMeta(form.dtype);
  if (!views) return wrap(std::move(body), form.sizes, form.strides, dtype);
  body->view_memory_of(shared_body_of(shown_));
  return wrap_view(shown_, std::move(body), form.sizes, form.strides, dtype);
}

}  // namespace intarsia
