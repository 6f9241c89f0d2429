// The gradients of a ShardedParam: see Note [Gradients that wait].

#include "intarsia/data_parallel/fully_shard/sharded_param.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/data_parallel/fully_shard/average_terms.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

Shards ShardedParam::terms_of_gradient() const {
  auto& grad = gradient_.unreduced();
  TORCH_CHECK_NOT_IMPLEMENTED(!grad.is_sparse(), "[fully_shard] the gradient of \"", name_,
                              "\" is sparse, and only dense ones are ",
                              "reduced to shards. Make the embedding with sparse = false.");
  if (is_dtensor(grad)) return shards_in(grad, layout_of_gradient());
  Shards terms;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) terms.push_back(value_at(grad, slot));
  return terms;
}

// A gradient that is whole on every rank is sent to every rank.
Shards ShardedParam::parts_of_gradient(at::ScalarType dtype) const {
  auto& axis = *axes_.shard;
  Shards terms, parts;
  if (has_gradient()) terms = terms_of_gradient();
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    auto grad = terms.empty() ? at::zeros(whole_sizes(slot), at::TensorOptions().dtype(dtype)) : terms[slot].to(dtype);
    if (dim_ == 0) {
      parts.push_back(grad.contiguous().view(-1));
      continue;
    }
    std::vector<at::Tensor> pieces;
    for (int64_t j = 0; j < axis.size(); ++j) pieces.push_back(piece(grad, j).reshape(-1));
    parts.push_back(at::cat(pieces));
  }
  return parts;
}

Counts ShardedParam::gradient_counts() const {
  Counts counts;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
    auto& row = counts.emplace_back();
    for (int64_t j = 0; j < axes_.shard->size(); ++j) row.push_back(c10::multiply_integers(local_sizes(slot, j)));
  }
  return counts;
}

at::Tensor ShardedParam::dtensor_of(Shards locals, const Layout* layout) const {
  auto dtype = locals[0].dtype();
  return wrap(c10::make_intrusive<DTensorBody>(std::move(locals), layout), sizes_, sharded_.strides(), dtype);
}

void ShardedParam::add_gradient(const Shards& parts, bool pending) {
  at::NoGradGuard no_grad;
  Shards locals;
  for (size_t slot = 0; slot < parts.size(); ++slot) {
    locals.push_back(parts[slot].to(dtype_).view(local_sizes(slot, axes_.shard->position(slot))));
  }
  auto grad = dtensor_of(std::move(locals), pending ? pending_over_copies() : &layout_of(sharded_));
  auto tensor = leaf();
  if (!pending) grad = after_tensor_hooks(tensor, grad);
  tensor.grad().defined() ? tensor.mutable_grad().add_(grad) : tensor.mutable_grad() = grad;
}

// --- gradients that wait

static const Layout* with_average(const Layout& layout, const std::vector<int64_t>& axes) {
  auto placements = settled(layout.placements());
  for (auto axis : axes) placements[axis] = Partial(ReduceOp::avg);
  return layout.with(placements);
}

const Layout* ShardedParam::layout_of_gradient() const { return with_average(*rest_.whole, rest_.data_of_whole); }
const Layout* ShardedParam::pending_layout() const { return with_average(*rest_.shards, rest_.data); }
const Layout* ShardedParam::pending_over_copies() const { return with_average(*rest_.shards, rest_.copies); }

std::vector<const Layout*> ShardedParam::layouts_of_gradients() const {
  std::vector<const Layout*> layouts{&layout_of(sharded_), pending_layout()};
  if (axes_.replicate) layouts.push_back(pending_over_copies());
  return layouts;
}

Shards ShardedParam::take_pending_over_copies() {
  auto tensor = leaf();
  if (!axes_.replicate || !gradient_.is_pending_over_copies()) return {};
  Shards terms;
  for (auto& term : shards_of(tensor.grad())) terms.push_back(term.reshape(-1));
  tensor.mutable_grad() = at::Tensor();
  return terms;
}

void ShardedParam::fetch_pending() {
  if (!has_pending()) return;
  auto tensor = leaf();
  Shards terms = shards_of(tensor.grad());
  for (size_t slot = 0; average_scale_ != 1 && slot < terms.size(); ++slot) terms[slot] = terms[slot] / average_scale_;
  bool one = terms.size() == 1;
  if (is_dtensor(whole_)) {
    gradient_.set_unreduced(dtensor_of(std::move(terms), layout_of_gradient()));
  } else {
    gradient_.set_unreduced(one ? terms[0] : per_rank(std::move(terms)));
  }
  tensor.mutable_grad() = at::Tensor();
}

void ShardedParam::defer_gradient(std::optional<at::ScalarType> dtype) {
  at::NoGradGuard no_grad;
  if (!has_gradient()) return;
  gradient_.on(GradientEvent::defer);
  if (dtype) gradient_.set_unreduced(with_dtype(gradient_.unreduced(), *dtype));
  auto tensor = leaf();
  auto terms = terms_of_gradient();
  for (size_t slot = 0; slot < terms.size(); ++slot) {
    bool shared = slot > 0 && terms[slot].is_same(terms[0]);  // one value for all simulated ranks
    terms[slot] = shared ? terms[slot].clone(at::MemoryFormat::Contiguous) : terms[slot].contiguous();
  }
  for (size_t slot = 0; average_scale_ != 1 && slot < terms.size(); ++slot) terms[slot] = terms[slot] * average_scale_;
  if (tensor.grad().defined()) add_reduced(terms, tensor.grad());
  tensor.mutable_grad() = dtensor_of(std::move(terms), pending_layout());
  drop_gradient();
}

// A reduced gradient as terms of an average, without communication: of n ranks, each adds n times its own part. 1, 2 on
// two ranks are the terms (2, 0) and (0, 4).
void ShardedParam::add_reduced(Shards& terms, const at::Tensor& grad) const {
  TORCH_CHECK_VALUE(
      is_dtensor(grad), "[fully_shard] the gradient of \"", name_, "\" is a plain tensor of shape ", grad.sizes(),
      ", and one that is not reduced yet is to be added. Assign distributed gradients, or call zero_grad first.");
  auto parts = gradient_.is_pending_over_copies() ? shards_of(grad) : shards_in(grad, &layout_of(sharded_));
  double count = dim_ ? static_cast<double>(axes_.shard->size()) : 1;
  for (size_t slot = 0; slot < terms.size(); ++slot) {
    terms[slot] = terms[slot].to(at::promote_types(terms[slot].scalar_type(), grad.scalar_type()));
    piece(terms[slot], axes_.shard->position(slot)).add_(parts[slot], count);
  }
}

at::Tensor ShardedParam::with_dtype(const at::Tensor& grad, at::ScalarType dtype) const {
  if (grad.scalar_type() == dtype) return grad;
  if (!is_spread()) return grad.to(dtype);
  Shards terms;  // each separately: what is pending stays so
  for (auto& term : shards_of(grad)) terms.push_back(term.to(dtype));
  return dtensor_of(std::move(terms), layout_of_gradient());
}

// The unreduced gradient and what autograd has added, as terms.
at::Tensor ShardedParam::sum_of_terms(const at::Tensor& grad) const {
  at::NoGradGuard no_grad;
  auto& before = gradient_.unreduced();
  auto terms = to_average_terms(name_, grad, *rest_.whole, rest_.data_of_whole, !axes_.on_full_mesh);
  for (size_t slot = 0; before.defined() && slot < terms.size(); ++slot)
    terms[slot] = shards_of(before)[slot] + terms[slot];
  return dtensor_of(std::move(terms), layout_of_gradient());
}

// Autograd adds to the unreduced gradient. Not to terms: what arrives may be a sum, a value, or another kind, and is
// added afterwards.
void ShardedParam::before_accumulate() {
  if (gradient_.on(GradientEvent::before_accumulate) == GradientState::accumulating) fail_gradient();
  fetch_pending();
  at::Tensor start;
  if (!is_spread()) {
    start = gradient_.unreduced();
    gradient_.set_unreduced(at::Tensor());
  }
  gradient_.begin_accumulating(std::move(start));
}

void ShardedParam::after_accumulate() {
  gradient_.on(GradientEvent::after_accumulate);
  auto grad = gradient_.end_accumulating();
  if (!is_spread()) {
    gradient_.set_unreduced(grad);
  } else if (grad.defined()) {
    gradient_.set_unreduced(sum_of_terms(grad));
  }
}

void ShardedParam::fail_gradient() {
  if (gradient_.state() != GradientState::accumulating) return;
  gradient_.end_accumulating();
  drop_gradient();
}

void ShardedParam::drop_gradient() { gradient_.set_unreduced(at::Tensor()); }

}  // namespace intarsia
