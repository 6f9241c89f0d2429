#include "intarsia/tensor/body.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/libtorch/version_counter.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/rehearsal.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
namespace {

// Does not wait for a value that is still being sent.
c10::Device device_of(DTensorBody& body) {
  auto of_mesh = [&] { return c10::Device(body.layout->mesh().device_type()); };
  if (body.is_late()) return of_mesh();
  auto& shards = body.shards();
  // See Note [Tensors without data] for the second condition.
  bool as_the_mesh = shards.empty() || (shards[0].is_meta() && is_rehearsing());
  return as_the_mesh ? of_mesh() : shards[0].device();
}

// Excludes the factory keys while our code runs, which LibTorch's code may have called: see Note [Factories].
struct OutsideLibTorch {
  c10::impl::ExcludeDispatchKeyGuard outside{kFactoryKeys};
};

thread_local bool is_replaying = false;
struct ReplayScope {
  bool outer = std::exchange(is_replaying, true);
  ~ReplayScope() { is_replaying = outer; }
};

}  // namespace

void DTensorBody::view_memory_of(const c10::intrusive_ptr<DTensorBody>& base) {
  base_ = base->base_ ? base->base_ : base;
  if (C10_LIKELY(!layout->has_partial())) return;
  auto& views = base_->pending_views_;
  auto is_gone = [](auto& view) { return view.expired(); };
  if (views.size() == views.capacity()) views.erase(std::remove_if(views.begin(), views.end(), is_gone), views.end());
  views.emplace_back(c10::intrusive_ptr<DTensorBody>::unsafe_reclaim_from_nonowning(this));
}

void DTensorBody::follow(std::unique_ptr<Recipe> recipe) {
  recipe_ = std::move(recipe);
  is_tied_ = true;
}

const Shards& DTensorBody::hand_out() {
  if (shards().empty()) return shards_;
  auto& owner = memory();
  if (shards_[0].is_inference()) {
    owner.is_unwatched_ = true;
    return shards_;
  }
  if (&owner != this) {
    std::lock_guard lock(mutex_);
    for (size_t slot = 0; slot < shards_.size() && !shares_counters_; ++slot)
      share_counter(shards_[slot], owner.shards_[slot]);
    shares_counters_ = true;
  }
  if (owner.recipe_) body_of(owner.recipe_->base).lend(owner);
  return shards_;
}

// Called on the owner of memory: what is lent of it.
std::shared_ptr<LentViews> DTensorBody::lent() {
  std::lock_guard lock(mutex_);
  if (!lent_) {
    lent_ = std::make_shared<LentViews>(shards_, version_.load(std::memory_order_relaxed));
    has_lent_.store(true, std::memory_order_release);
  }
  return lent_;
}

// Records the copy of a view of this tensor as lent, or what is lent of it as up to date.
void DTensorBody::lend(DTensorBody& view) {
  auto recipe = *view.recipe_;
  recipe.base = wrap(c10::make_intrusive<DTensorBody>(shards(), layout), recipe.base.sizes(), recipe.base.strides(),
                     recipe.base.dtype());
  auto& owner = memory();
  auto further = view.has_lent_.load(std::memory_order_acquire) ? view.lent_ : nullptr;
  owner.lent()->lend(
      {.recipe = std::move(recipe), .values = view.shards_, .layout = view.layout, .further = std::move(further)});
  owner.is_tied_.store(true, std::memory_order_release);
  if (owner.recipe_) body_of(owner.recipe_->base).lend(owner);
}

DTensorBody& DTensorBody::root() {
  auto& owner = memory();
  return owner.recipe_ ? body_of(owner.recipe_->base).root() : owner;
}

uint64_t DTensorBody::version() {
  auto& owner = memory();
  if (C10_UNLIKELY(owner.has_lent_.load(std::memory_order_acquire))) return owner.lent_->version();
  return owner.version_.load(std::memory_order_relaxed) + count_writes(owner.shards_);
}

void DTensorBody::arrive_later(std::function<Shards()> finish) {
  pending_ = std::move(finish);
  late_.store(true, std::memory_order_release);
}

void DTensorBody::finish() {
  std::lock_guard lock(mutex_);
  if (!pending_) return;
  OutsideLibTorch scope;
  try {
    shards_ = pending_();
  } catch (const c10::Error&) {  // there is no value: every later read gets the same error
    pending_ = [error = std::current_exception()]() -> Shards { std::rethrow_exception(error); };
    throw;
  } catch (...) {
    pending_ = []() -> Shards {
      TORCH_CHECK(false, "[wait] the wait for this tensor was interrupted: it has no value.");
    };
    throw;
  }
  pending_ = nullptr;
  late_.store(false, std::memory_order_release);
}

void DTensorBody::written() { written(calls_on(layout->mesh()).add("a write", layout, 1, origin)); }

void DTensorBody::written(const Origin& by) {
  auto& owner = memory();
  origin = by;
  if (&owner != this) owner.origin.add(by);
  owner.count_write();
  if (owner.recipe_) owner.write_back();
}

// Called on the owner of memory: takes back what was written to what it lent, and updates it from its base.
void DTensorBody::catch_up() {
  OutsideLibTorch scope;
  take_back();
  if (recipe_) refresh();
}

void DTensorBody::take_back() {
  if (!has_lent_.load(std::memory_order_acquire)) return;
  bool changed = lent_->take_back();
  if (lent_->empty() && !recipe_) is_tied_.store(false, std::memory_order_release);
  if (changed && recipe_) write_back();
}

// The base has changed since this view copied it: replays the view, into the same memory, so that views of the copy see
// it.
void DTensorBody::refresh() {
  std::lock_guard lock(mutex_);
  auto& base = body_of(recipe_->base);
  base.shards();
  auto version = base.version();
  // Nothing shows whether a tensor that is not watched has changed, except that a view of it that was just made is
  // fresh.
  if (recipe_->seen == version && (is_replaying || !base.memory().is_unwatched_)) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  recipe_->seen = version;
  Shards values;
  if (recipe_->local) {
    for (size_t slot = 0; slot < shards_.size(); ++slot) {
      values.push_back(base.shards()[slot].reshape(shards_[slot].sizes()));
    }
  } else {
    ReplayScope replaying;
    values = shards_in(replay(*recipe_, recipe_->base), layout);
  }
  write_once(shards_, values, [&](size_t slot) { shards_[slot].copy_(values[slot]); });
  count_write();
  base.renew_lent(*this);
}

// What is lent of a view that has been updated shows this tensor as it is now.
void DTensorBody::renew_lent(const DTensorBody& view) {
  auto& owner = memory();
  if (owner.has_lent_.load(std::memory_order_acquire) && !view.shards_.empty()) owner.lent_->renew(view.shards_);
}

bool DTensorBody::is_stale() {
  auto& owner = memory();
  if (!owner.recipe_) return false;
  std::lock_guard lock(owner.mutex_);
  auto& base = body_of(owner.recipe_->base);
  return base.is_stale() || (!owner.recipe_->local && owner.recipe_->seen != base.version());
}

void DTensorBody::write_back() {
  auto& base = body_of(recipe_->base);
  write_through(*recipe_, shards_, layout);
  base.written();
  base.renew_lent(*this);
  recipe_->seen = base.version();
}

void DTensorBody::settle_in_place() {
  OutsideLibTorch scope;
  auto& owner = memory();
  OriginScope moves(owner.origin);
  auto* done = owner.layout->with(intarsia::settled(owner.layout->placements()));
  auto& targets = owner.shards();
  at::AutoDispatchBelowADInplaceOrView guard;
  auto reduced = owner.settled([&] {
    // The reductions are elementwise, so the shape does not matter: the plan is the same on every rank.
    auto steps = plan(owner.layout, done, {}, 1);
    return Settled{done, owner.version(), run(steps, targets, {})};
  });
  if (reduced.layout != done) reduced.shards = run(plan(owner.layout, done, {}, 1), targets, {});
  write_once(targets, reduced.shards, [&](size_t slot) { write_into(targets[slot], reduced.shards[slot]); });
  owner.settled_ = nullptr;
  owner.layout = done;
  if (owner.has_lent_.load(std::memory_order_acquire)) owner.lent_->settle();
  for (auto& weak : owner.pending_views_) {
    if (auto view = weak.lock()) view->layout = view->layout->with(intarsia::settled(view->layout->placements()));
  }
  owner.pending_views_.clear();
}

// The caller holds the lock.
bool DTensorBody::has_settled(bool ask_now) {
  auto fresh = [&] { return settled_ && settled_->version == version() && !memory().is_unwatched_; };
  if (fresh()) return true;
  auto value = ask_settled_ ? ask_settled_(ask_now) : std::nullopt;
  if (!value) return false;
  ask_settled_ = nullptr;
  settled_ = std::make_unique<Settled>(std::move(*value));
  return fresh();
}

DTensorBody::Settled DTensorBody::settled(const std::function<Settled()>& settle) {
  std::lock_guard lock(mutex_);
  if (!has_settled(true)) settled_ = std::make_unique<Settled>(settle());
  return *settled_;
}

std::optional<DTensorBody::Settled> DTensorBody::known_settled() {
  std::lock_guard lock(mutex_);
  return has_settled(false) ? std::optional(*settled_) : std::nullopt;
}

void DTensorBody::settles_with_others(AskSettled ask) {
  std::lock_guard lock(mutex_);
  ask_settled_ = std::move(ask);
}

c10::intrusive_ptr<DTensorBody> shared_body_of(const at::Tensor& tensor) {
  auto shared = tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  return c10::intrusive_ptr<DTensorBody>::reclaim_copy(static_cast<DTensorBody*>(shared.get()));
}

at::Tensor wrap(c10::intrusive_ptr<DTensorBody> body, c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides,
                caffe2::TypeMeta dtype) {
  // Autograd must replay views instead of calling as_strided, which has no meaning on a sharded tensor.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  auto device = device_of(*body);
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
  follow_strides(shards, strides);
  return wrap(c10::make_intrusive<DTensorBody>(std::move(shards), layout), sizes, strides, dtype);
}

at::Tensor wrap_view(const at::Tensor& base, c10::intrusive_ptr<DTensorBody> body, c10::ArrayRef<int64_t> sizes,
                     c10::ArrayRef<int64_t> strides, caffe2::TypeMeta dtype) {
  if (C10_LIKELY(base.is_inference() == c10::InferenceMode::is_enabled()))
    return wrap(std::move(body), sizes, strides, dtype);
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);  // as wrap does, but the mode restores the state
  c10::InferenceMode as_base(base.is_inference());
  return wrap(std::move(body), sizes, strides, dtype);
}

at::Tensor another_handle(const at::Tensor& tensor) {
  return wrap_view(tensor, shared_body_of(tensor), tensor.sizes(), tensor.strides(), tensor.dtype());
}

void attach_note(const at::Tensor& tensor, NotePtr note) {
  body_of(tensor).note = std::move(note);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(another_handle(tensor).getIntrusivePtr());
}

// A slice of a local tensor is a view of it; the results of other steps get the order of the whole.
static Shards moved(const at::Tensor& tensor, const Plan& plan, const Shards& shards) {
  OriginScope origin(body_of(tensor).origin);
  auto result = run(plan, shards, tensor.sizes());
  follow_strides(result, tensor.strides());
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
