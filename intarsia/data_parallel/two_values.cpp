#include "intarsia/data_parallel/two_values.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "intarsia/data_parallel/first_use.h"
#include "intarsia/data_parallel/set_data.h"
#include "intarsia/data_parallel/terms_of_average.h"
#include "intarsia/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

void resize_storage(const at::Tensor& tensor, int64_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (static_cast<int64_t>(storage->nbytes()) == bytes) return;
  if (!tensor.is_meta()) return at::native::resize_bytes_cpu(storage, bytes);
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));  // explain counts it
  storage->set_nbytes(bytes);
}

}  // namespace

TwoValues::TwoValues(std::string name, const at::Tensor& leaf, const ShardingAxes& axes, std::optional<int64_t> dim,
                     std::optional<at::ScalarType> dtype_of_whole)
    : name_(std::move(name)), leaf_(leaf), axes_(axes), dim_(dim), dtype_(leaf.scalar_type()),
      whole_follows_dtype_(!dtype_of_whole), sizes_(leaf.sizes().vec()) {
  TORCH_CHECK_VALUE(!leaf.grad().defined(), "[fully_shard] \"", name_, "\" has a gradient. Call zero_grad first.");
  at::NoGradGuard no_grad;
  make_values(leaf, c10::scalarTypeToTypeMeta(dtype_of_whole.value_or(dtype_)));
}

void TwoValues::take_shards(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole) {
  auto strides = c10::contiguous_strides(sizes_);
  memories_sizes_.push_back(sizes_);
  memories_.push_back(at::empty(sizes_, leaf.options().dtype(dtype_of_whole)));
  whole_ = make_whole(memories_[0].storage(), sizes_, strides, dtype_of_whole);
  sharded_ = with_first_use_key(wrap(shards_in(leaf, rest_.shards), rest_.shards, sizes_, strides, leaf.dtype()));
}

void TwoValues::make_values(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole) {
  rest_ = at_rest(name_, axes_, leaf, dim_);
  if (is_dtensor(leaf) && !rest_.whole) return take_shards(leaf, dtype_of_whole);
  Shards values = rest_.whole ? shards_in(leaf, rest_.whole) : Shards{value_at(leaf, 0).detach()};
  Shards locals;
  auto slots = axes_.shard->slot_count();
  for (auto& value : values) memories_sizes_.push_back(value.sizes().vec());
  for (size_t slot = 0; slot < slots; ++slot) {
    auto& value = values[values.size() == 1 ? 0 : slot];
    locals.push_back(piece(value, axes_.shard->position(slot)).clone(at::MemoryFormat::Contiguous));
  }
  for (auto& value : values) memories_.push_back(at::empty(value.sizes(), value.options().dtype(dtype_of_whole)));
  auto strides = c10::contiguous_strides(sizes_);
  auto sharded = wrap(c10::make_intrusive<DTensorBody>(std::move(locals), rest_.shards), sizes_, strides, leaf.dtype());
  if (!rest_.whole) {
    whole_ = make_whole(memories_[0].storage(), sizes_, strides, dtype_of_whole);
  } else {
    Shards wholes(memories_.begin(), memories_.end());
    auto whole = wrap(c10::make_intrusive<DTensorBody>(std::move(wholes), rest_.whole), sizes_, strides, dtype_of_whole);
    if (body_of(leaf).note) attach_note(whole, body_of(leaf).note), attach_note(sharded, body_of(leaf).note);
    whole_ = with_first_use_key(whole);
  }
  sharded_ = with_first_use_key(sharded);
}

int64_t TwoValues::bytes_of_whole() const {
  return c10::multiply_integers(memories_sizes_[0]) * static_cast<int64_t>(memories_[0].element_size());
}

at::Tensor TwoValues::place_in(size_t memory) const {
  auto& sizes = memories_sizes_[memory];
  auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(memories_[memory].element_size());
  resize_storage(memories_[memory], bytes);
  return memories_[memory];
}

at::Tensor TwoValues::piece(const at::Tensor& whole, int64_t member) const {
  if (!dim_) return whole;
  auto run = chunk_of(whole.size(*dim_), axes_.shard->size(), member);
  return whole.narrow(*dim_, run.begin, run.size());
}

std::vector<int64_t> TwoValues::local_sizes(size_t slot, int64_t member) const {
  auto sizes = whole_sizes(slot);
  if (dim_) sizes[*dim_] = chunk_of(sizes[*dim_], axes_.shard->size(), member).size();
  return sizes;
}

Shards TwoValues::outgoing() const {
  Shards locals;
  for (auto& local : shards_of(sharded_)) locals.push_back(local.to(whole_.scalar_type()).view(-1));
  if (dim_) return locals;
  for (auto& local : locals) local = local.narrow(0, 0, 0);  // nothing to tell
  return locals;
}

Counts TwoValues::counts() const {
  auto counts = gradient_counts();
  if (dim_) return counts;
  for (auto& row : counts) std::fill(row.begin(), row.end(), 0);
  return counts;
}

// Along the first dim the parts of all ranks, one behind the other, are the whole. Simulated ranks may have one whole: that of
// the first is kept.
Shards TwoValues::incoming() {
  Shards rooms;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
    if (slot < memories_.size() && dim_ == 0) {
      rooms.push_back(place_in(slot).view(-1));
    } else {
      rooms.push_back(at::empty({dim_ ? c10::multiply_integers(whole_sizes(slot)) : 0}, memories_[0].options()));
    }
  }
  return rooms;
}

void TwoValues::arrived(const Shards& incoming) {
  if (dim_ == 0) return;
  at::NoGradGuard no_grad;
  for (size_t slot = 0; slot < memories_.size(); ++slot) {
    auto target = place_in(slot);
    if (!dim_) {
      target.copy_(shards_of(sharded_)[slot]);
      continue;
    }
    int64_t begin = 0;
    for (int64_t j = 0; j < axes_.shard->size(); ++j) {
      auto sizes = local_sizes(slot, j);
      auto count = c10::multiply_integers(sizes);
      piece(target, j).copy_(incoming[slot].narrow(0, begin, count).view(sizes));
      begin += count;
    }
  }
}

uint64_t TwoValues::version() const { return body_of(sharded_).version(); }

// torch::zeros_like and its kind come here with autograd's keys excluded, but below those set_data does not know our tensors.
static void set_value(const at::Tensor& leaf, const at::Tensor& value) {
  if (is_rehearsing()) return leaf.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());  // set_data refuses meta
  auto local = c10::impl::tls_local_dispatch_key_set();
  auto excluded = local.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  c10::impl::ForceDispatchKeyGuard guard(local.included_, excluded);
  set_data_unwatched(leaf, value);
}

void TwoValues::become_whole() { set_value(leaf(), whole_); }

void TwoValues::become_shards() {
  set_value(leaf(), sharded_);
  for (auto& memory : memories_) resize_storage(memory, 0);
}

// Where dtype or device change, the memory of the whole is made anew: what autograd has saved of the old one does not count any more.
void TwoValues::take_form_of(const at::Tensor& local) {
  dtype_ = local.scalar_type();
  auto meta = whole_follows_dtype_ ? local.dtype() : whole_.dtype();
  if (whole_.dtype() == meta && memories_[0].device() == local.device()) return;
  for (size_t m = 0; m < memories_.size(); ++m) memories_[m] = at::empty(memories_sizes_[m], local.options().dtype(meta));
  if (!is_dtensor(whole_)) {
    whole_ = make_whole(memories_[0].storage(), sizes_, whole_.strides(), meta);
    return;
  }
  auto note = body_of(whole_).note;
  auto body = c10::make_intrusive<DTensorBody>(Shards(memories_.begin(), memories_.end()), &layout_of(whole_));
  auto whole = wrap(std::move(body), sizes_, whole_.strides(), meta);
  if (note) attach_note(whole, note);
  whole_ = with_first_use_key(whole);
}

void TwoValues::replace(const at::Tensor& value) {
  at::NoGradGuard no_grad;
  bool as_whole = is_dtensor(value) == is_dtensor(whole_) && (!is_dtensor(value) || &layout_of(value) == &layout_of(whole_));
  bool as_shards = is_dtensor(value) && mesh_of(value) == mesh_of(sharded_);
  TORCH_CHECK_VALUE(value.sizes() == at::IntArrayRef(sizes_) && (as_whole || as_shards), "[fully_shard] \"", name_, "\" of shape ",
                    at::IntArrayRef(sizes_), " is given data of shape ", value.sizes(),
                    is_dtensor(value) ? " as " + str(layout_of(value)) : "", ". Give a whole value, or one laid out as ",
                    str(layout_of(sharded_)), ".");
  Shards locals;
  if (as_shards) {
    for (auto& shard : shards_in(value, &layout_of(sharded_))) locals.push_back(shard.contiguous());
  } else {
    for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
      auto whole = is_dtensor(value) ? shards_of(value)[slot] : value_at(value, slot);
      locals.push_back(piece(whole, axes_.shard->position(slot)).clone(at::MemoryFormat::Contiguous));
    }
  }
  auto note = body_of(sharded_).note;
  auto first = locals[0];
  auto body = c10::make_intrusive<DTensorBody>(std::move(locals), &layout_of(sharded_));
  auto sharded = wrap(std::move(body), sizes_, sharded_.strides(), value.dtype());
  if (note) attach_note(sharded, note);
  sharded_ = with_first_use_key(sharded);
  take_form_of(first);
  leaf().unsafeGetTensorImpl()->bump_version();
  become_shards();
}

Shards TwoValues::terms_of_gradient() const {
  if (is_dtensor(gradient_)) return shards_in(gradient_, layout_of_gradient());
  Shards terms;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) terms.push_back(value_at(gradient_, slot));
  return terms;
}

// What is whole on every rank is sent to every rank.
Shards TwoValues::parts_of_gradient(at::ScalarType dtype) const {
  auto& axis = *axes_.shard;
  Shards terms, parts;
  if (gradient_.defined()) terms = terms_of_gradient();
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

Counts TwoValues::gradient_counts() const {
  Counts counts;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
    auto& row = counts.emplace_back();
    for (int64_t j = 0; j < axes_.shard->size(); ++j) row.push_back(c10::multiply_integers(local_sizes(slot, j)));
  }
  return counts;
}

at::Tensor TwoValues::dtensor_of(Shards locals, const Layout* layout) const {
  auto dtype = locals[0].dtype();
  return wrap(c10::make_intrusive<DTensorBody>(std::move(locals), layout), sizes_, sharded_.strides(), dtype);
}

void TwoValues::add_gradient(const Shards& parts, bool pending) {
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

const Layout* TwoValues::layout_of_gradient() const { return with_average(*rest_.whole, rest_.data_of_whole); }
const Layout* TwoValues::pending_layout() const { return with_average(*rest_.shards, rest_.data); }
const Layout* TwoValues::pending_over_copies() const { return with_average(*rest_.shards, rest_.copies); }

static uint64_t version_of(const at::Tensor& grad) { return is_dtensor(grad) ? body_of(grad).version() : grad._version(); }

static bool is_laid_out(const at::Tensor& grad, const Layout* layout) {
  return grad.defined() && is_dtensor(grad) && &layout_of(grad) == layout;
}

Shards TwoValues::take_pending_over_copies() {
  auto tensor = leaf();
  if (!axes_.replicate || !is_laid_out(tensor.grad(), pending_over_copies())) return {};
  Shards terms;
  for (auto& term : shards_of(tensor.grad())) terms.push_back(term.reshape(-1));
  tensor.mutable_grad() = at::Tensor();
  return terms;
}

bool TwoValues::has_pending() const {
  auto grad = leaf().grad();
  return is_laid_out(grad, pending_layout()) || (beside_ && grad.defined() && beside_->tensor.lock().is_same(grad));
}

bool TwoValues::fetch_pending() {
  auto tensor = leaf();
  auto& grad = tensor.mutable_grad();
  if (is_laid_out(grad, pending_layout())) {
    auto terms = shards_of(grad);
    bool one = terms.size() == 1;
    if (!is_dtensor(whole_)) {
      gradient_ = one ? terms[0] : per_rank(std::move(terms));
    } else {
      gradient_ = dtensor_of(std::move(terms), layout_of_gradient());
    }
    grad = at::Tensor();
  } else if (beside_) {
    bool same = grad.defined() && beside_->tensor.lock().is_same(grad);
    if (!same) drop_gradient();  // zero_grad was called
    TORCH_CHECK(!same || version_of(grad) == beside_->version, "[fully_shard] the gradient of \"", name_,
                "\" was changed while another one, not reduced yet, adds up. Change gradients after a pass with sync, or take ",
                "them away with zero_grad(set_to_none).");
  }
  beside_.reset();
  return gradient_.defined();
}

void TwoValues::show_as_pending(std::optional<at::ScalarType> dtype) {
  at::NoGradGuard no_grad;
  if (!gradient_.defined()) return;
  if (dtype) to_dtype(*dtype);
  auto tensor = leaf();
  if (tensor.grad().defined()) {
    beside_ = Seen{tensor.grad(), version_of(tensor.grad())};
    return;
  }
  auto terms = terms_of_gradient();
  for (size_t slot = 0; slot < terms.size(); ++slot) {
    bool shared = slot > 0 && terms[slot].is_same(terms[0]);  // one value that stands for all simulated ranks
    terms[slot] = shared ? terms[slot].clone(at::MemoryFormat::Contiguous) : terms[slot].contiguous();
  }
  tensor.mutable_grad() = dtensor_of(std::move(terms), pending_layout());
  drop_gradient();
}

void TwoValues::to_dtype(at::ScalarType dtype) {
  if (gradient_.scalar_type() == dtype) return;
  if (!is_spread()) return void(gradient_ = gradient_.to(dtype));
  Shards terms;  // each by itself: what is pending stays so
  for (auto& term : shards_of(gradient_)) terms.push_back(term.to(dtype));
  gradient_ = dtensor_of(std::move(terms), layout_of_gradient());
}

void TwoValues::add_terms(const at::Tensor& grad) {
  if (!grad.defined()) return;
  at::NoGradGuard no_grad;
  auto terms = terms_of_average(name_, grad, *rest_.whole, rest_.data_of_whole, !axes_.on_full_mesh);
  for (size_t slot = 0; gradient_.defined() && slot < terms.size(); ++slot) {
    terms[slot] = shards_of(gradient_)[slot] + terms[slot];
  }
  gradient_ = dtensor_of(std::move(terms), layout_of_gradient());
}

// Terms are not lent, but added when the gradient is taken: what comes may be a sum, a value, or another kind.
void TwoValues::lend_gradient() {
  fetch_pending();
  auto tensor = leaf();
  own_gradient_ = tensor.grad();
  tensor.mutable_grad() = is_spread() ? at::Tensor() : std::move(gradient_);
  if (!is_spread()) gradient_ = at::Tensor();
  lent_ = true;
}

at::Tensor TwoValues::take_back() {
  auto tensor = leaf();
  auto grad = tensor.grad();
  tensor.mutable_grad() = std::move(own_gradient_);
  own_gradient_ = at::Tensor();
  lent_ = false;
  return grad;
}

void TwoValues::take_gradient() {
  auto grad = take_back();
  is_spread() ? add_terms(grad) : void(gradient_ = grad);
}

void TwoValues::end_loan() {
  if (lent_) take_back(), drop_gradient();
}

}  // namespace intarsia
