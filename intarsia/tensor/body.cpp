#include "intarsia/tensor/body.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>

#include "intarsia/comm/trace.h"
#include "intarsia/core/interposed.h"
#include "intarsia/core/keys.h"
#include "intarsia/redistribute/run.h"
#include "intarsia/tensor/rehearsal.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
namespace {

c10::Device device_of(const Shards& shards, const Layout& layout) {
  // See Note [Tensors without data] for the second.
  bool as_the_mesh = shards.empty() || (shards[0].is_meta() && is_rehearsing());
  return as_the_mesh ? c10::Device(layout.mesh().device_type()) : shards[0].device();
}

// An expanded dim is one place in memory, which copy_ would refuse to write many times; all its values are equal.
void write(at::Tensor target, at::Tensor value) {
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (target.stride(d) == 0 && target.size(d) > 1) target = target.narrow(d, 0, 1), value = value.narrow(d, 0, 1);
  }
  target.copy_(value);
}

at::Tensor replay(const Recipe& recipe, const at::Tensor& base) {
  auto stack = recipe.args;
  stack[recipe.self] = base;
  recipe.op.callBoxed(stack);
  if (stack[0].isTensorList()) return stack[0].toTensorVector()[recipe.output];
  return stack[recipe.output].toTensor();
}

}  // namespace

void DTensorBody::view_memory_of(const c10::intrusive_ptr<DTensorBody>& base) {
  base_ = base->base_ ? base->base_ : base;
}

void DTensorBody::arrive_later(std::function<Shards()> finish) {
  pending_ = std::move(finish);
  late_.store(true, std::memory_order_release);
}

void DTensorBody::finish() {
  std::lock_guard lock(mutex_);
  if (!pending_) return;
  try {
    shards_ = pending_();
  } catch (const c10::Error&) {  // there is no value: every later read gets the same error
    pending_ = [error = std::current_exception()]() -> Shards { std::rethrow_exception(error); };
    throw;
  } catch (...) {
    pending_ = []() -> Shards { TORCH_CHECK(false, "[wait] the wait for this tensor was interrupted: it has no value."); };
    throw;
  }
  pending_ = nullptr;
  late_.store(false, std::memory_order_release);
}

void DTensorBody::written() {
  auto& owner = memory();
  ++owner.version_;
  if (owner.recipe_) owner.write_back();
}

// The base changed since this view copied it: replay the view, into the same memory, so that views of the copy see it.
void DTensorBody::refresh() {
  std::lock_guard lock(mutex_);
  auto& base = body_of(recipe_->base);
  base.shards();
  if (recipe_->seen == base.version()) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  recipe_->seen = base.version();
  Shards values;
  if (recipe_->local) {
    for (size_t slot = 0; slot < shards_.size(); ++slot) {
      values.push_back(base.shards()[slot].reshape(shards_[slot].sizes()));
    }
  } else {
    values = shards_in(replay(*recipe_, recipe_->base), layout);
  }
  for (size_t slot = 0; slot < shards_.size(); ++slot) shards_[slot].copy_(values[slot]);
  ++version_;
}

bool DTensorBody::is_stale() {
  auto& owner = memory();
  if (!owner.recipe_) return false;
  std::lock_guard lock(owner.mutex_);
  auto& base = body_of(owner.recipe_->base);
  return base.is_stale() || (!owner.recipe_->local && owner.recipe_->seen != base.version());
}

// Opens the base as a whole tensor, writes the view's values through a plain view of it, and keeps each rank's part.
void DTensorBody::write_back() {
  at::AutoDispatchBelowADInplaceOrView guard;
  CauseScope cause("write through a view", true);
  auto& base = body_of(recipe_->base);
  if (recipe_->local) {
    auto& targets = base.shards();
    for (size_t slot = 0; slot < targets.size(); ++slot) {
      write(targets[slot], shards_[slot].reshape(targets[slot].sizes()));
    }
    base.written();
    recipe_->seen = base.version();
    return;
  }
  auto* replicated = Layout::replicated(layout->mesh());
  auto element_size = c10::elementSize(recipe_->base.scalar_type());
  auto values = run(plan(layout, replicated, recipe_->sizes, element_size), shards_, recipe_->sizes);
  auto wholes = shards_in(recipe_->base, replicated);
  auto& targets = base.shards();
  for (size_t slot = 0; slot < targets.size(); ++slot) {
    auto whole = at::empty_strided(recipe_->base.sizes(), recipe_->base.strides(), wholes[slot].options());
    write(whole, wholes[slot]);
    write(replay(*recipe_, whole), values[slot]);
    write(targets[slot], shard_of(whole, *base.layout, layout->mesh().slots()[slot].coordinate));
  }
  base.written();
  recipe_->seen = base.version();
}

DTensorBody::Settled DTensorBody::settled(const std::function<Settled()>& settle) {
  std::lock_guard lock(mutex_);
  if (!settled_ || settled_->version != version()) settled_ = std::make_unique<Settled>(settle());
  return *settled_;
}

c10::intrusive_ptr<DTensorBody> shared_body_of(const at::Tensor& tensor) {
  auto shared = tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  return c10::intrusive_ptr<DTensorBody>::reclaim_copy(static_cast<DTensorBody*>(shared.get()));
}

at::Tensor wrap(c10::intrusive_ptr<DTensorBody> body, c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides,
                caffe2::TypeMeta dtype) {
  // Autograd must replay views instead of calling as_strided, which has no meaning on a cut tensor.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  auto device = device_of(body->shards(), *body->layout);
  auto keys = c10::DispatchKeySet(kDTensorKey) | autocast_keys(device);
  if (C10_UNLIKELY(body->note.defined())) keys = keys.add(kNoteKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, dtype, device);
  impl->set_sizes_and_strides(sizes, strides);
  impl->set_storage_access_should_throw();
  explain_missing_memory(*impl);
  impl->set_backend_meta(std::move(body));
  return at::Tensor(std::move(impl));
}

at::Tensor wrap(Shards shards, const Layout* layout, c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides,
                caffe2::TypeMeta dtype) {
  for (auto& shard : shards) follow_strides(shard, strides);
  return wrap(c10::make_intrusive<DTensorBody>(std::move(shards), layout), sizes, strides, dtype);
}

at::Tensor another_handle(const at::Tensor& tensor) {
  return wrap(shared_body_of(tensor), tensor.sizes(), tensor.strides(), tensor.dtype());
}

void attach_note(const at::Tensor& tensor, NotePtr note) {
  body_of(tensor).note = std::move(note);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(another_handle(tensor).getIntrusivePtr());
}

// A slice of a local tensor is a view of it; what comes of a move has the order of the whole, too.
static Shards moved(const at::Tensor& tensor, const Plan& plan, const Shards& shards) {
  auto result = run(plan, shards, tensor.sizes());
  bool dense = tensor.is_non_overlapping_and_dense();
  for (auto& shard : result) {
    if (dense) follow_strides(shard, tensor.strides());
    else shard = shard.contiguous();
  }
  return result;
}

Shards shards_in(const at::Tensor& tensor, const Layout* layout) {
  auto* now = body_of(tensor).layout;
  return shards_by(tensor, layout, plan(now, layout, tensor.sizes(), c10::elementSize(tensor.scalar_type())));
}

Shards shards_by(const at::Tensor& tensor, const Layout* layout, const Plan& plan) {
  auto& body = body_of(tensor);
  auto& shards = body.shards();
  if (body.layout == layout) return shards;
  bool settles = body.layout->has_partial() && !layout->has_partial();
  if (!settles) return moved(tensor, plan, shards);
  auto known = body.settled([&] { return DTensorBody::Settled{layout, body.version(), moved(tensor, plan, shards)}; });
  if (known.layout == layout) return known.shards;
  auto steps = intarsia::plan(known.layout, layout, tensor.sizes(), c10::elementSize(tensor.scalar_type()));
  return moved(tensor, steps, known.shards);
}

}  // namespace intarsia
