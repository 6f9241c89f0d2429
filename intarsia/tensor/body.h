#pragma once
// DTensorBody: the shards and the layout of a distributed tensor, attached as c10::BackendMeta to an at::Tensor that
// has the key PrivateUse3.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "intarsia/comm/call_log.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/lent.h"
#include "intarsia/tensor/recipe.h"

namespace intarsia {

// Note [Tensors with a note]
// A tensor may carry a note for the ops that use it: a parallel style says on a parameter how `linear` prepares its
// input and leaves its output (nn/). Such a tensor has one more key, above autograd, where those ops have kernels and
// all others fall through. LibTorch has no kernel on this key, so tensors without a note pay nothing. clone, to and
// detach pass the note on, and set_data of a distributed tensor keeps it.
using NotePtr = c10::intrusive_ptr<c10::intrusive_ptr_target>;

// Note [Writes through local memory]
// A program gets local tensors from to_local and shards_of, or still has those it passed to from_local, and what it
// writes to them does not go through dispatch. Version counters show such writes: what is remembered of a tensor (its
// reduced value, a view that is a copy) is valid for one state of these counters. Dispatch itself writes below them.
// Tensors that view one memory get one counter when they are handed out. The local tensors of a view that is a copy are
// lent: the next reader of the base first carries over what was written to them, and it is an error if the base had
// changed by then. A copied view of a copied view lends through both. Tensors made in inference mode have no counter:
// once handed out, nothing of them is remembered, and nothing is carried over. All ranks must write through local
// memory, like any op: a rank that alone has to renew what it remembers would wait for the others.

// Note [Reading from several threads]
// Several threads may read one tensor. Three reads change the body: the first read of a value of an asynchronous
// redistribution, of a view whose base has changed, and of a pending reduction. Each takes the lock of the body it
// changes, on its rare path only; a view takes its own lock before that of its base. The caller synchronizes writes, as
// with plain tensors.
class DTensorBody final : public c10::BackendMeta {
 public:
  DTensorBody(Shards shards, const Layout* layout) : layout(layout), shards_(std::move(shards)) {}

  const Layout* layout;
  Origin origin;  // see Note [Origins]
  NotePtr note;   // null for most; see Note [Tensors with a note]

  // The local tensors, finished and up to date.
  const Shards& shards() {
    if (C10_UNLIKELY(late_.load(std::memory_order_acquire))) finish();
    if (C10_UNLIKELY(memory().is_tied_.load(std::memory_order_acquire))) memory().catch_up();
    return shards_;
  }

  // The same for a caller that may write to them outside dispatch; see Note [Writes through local memory].
  const Shards& hand_out();

  // The local tensors as they were last read: a view whose base has changed since may show old values. Never
  // communicates.
  const Shards& last_known_shards() {
    if (late_.load(std::memory_order_acquire)) finish();
    return shards_;
  }
  // Whether an asynchronous redistribution has yet to deliver them.
  bool is_late() const { return late_.load(std::memory_order_acquire); }
  // Whether shards() would communicate: the tensor is a view that does, and its base has changed.
  bool is_stale();

  // The owner of the memory that the shards view.
  DTensorBody& memory() { return base_ ? *base_ : *this; }
  // The owner of the memory that this is a view of, also through views that are copies.
  DTensorBody& root();
  // Changes after every write to the memory, whoever writes.
  uint64_t version();

  // Call this after the shards have been written to. `by`: the call that wrote, if known, see Note [Origins].
  void written();
  void written(const Origin& by);

  // Runs the pending reduction in the memory itself, for all tensors that see it: the value is the same, and from now
  // on each rank holds it. For ops that write to a value whose reduction is pending.
  void settle_in_place();

  // Ties this body to its source: as a view of the memory of `base`, as a copied view, or as the result of an
  // asynchronous redistribution.
  void view_memory_of(const c10::intrusive_ptr<DTensorBody>& base);
  void follow(std::unique_ptr<Recipe> recipe);
  void arrive_later(std::function<Shards()> finish);

  // The value of a pending reduction is often read several times (an optimizer reads a gradient three times): the
  // reduced shards are kept until the tensor changes. Other layouts are derived from them as well: a second reduction
  // could round differently, and the gradient of amax looks for exactly the values that the forward pass found.
  struct Settled {
    const Layout* layout;
    uint64_t version;
    Shards shards;
  };
  // The settled value, computed by `settle` if it is not known yet: by one thread for all.
  Settled settled(const std::function<Settled()>& settle);
  // The same if it is known, without communication.
  std::optional<Settled> known_settled();
  // Another owner reduces this value together with others. `ask(now)` returns the result; unless `now`, only if it is
  // there.
  using AskSettled = std::function<std::optional<Settled>(bool now)>;
  void settles_with_others(AskSettled ask);

 private:
  void finish();
  void catch_up();
  void take_back();
  void lend(DTensorBody& view);
  void renew_lent(const DTensorBody& view);
  std::shared_ptr<LentViews> lent();
  void refresh();
  void write_back();
  bool has_settled(bool ask_now);

  void count_write() {
    if (C10_UNLIKELY(has_lent_.load(std::memory_order_acquire))) return lent_->count_write();
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  Shards shards_;
  std::atomic<uint64_t> version_{0};
  c10::intrusive_ptr<DTensorBody> base_;  // null if this body owns the memory
  std::unique_ptr<Recipe> recipe_;
  std::atomic<bool> is_tied_{false};       // has a recipe, or has lent something
  std::atomic<bool> is_unwatched_{false};  // handed out, and writes to it are not counted
  bool shares_counters_ = false;           // with its base
  std::atomic<bool> has_lent_{false};
  std::shared_ptr<LentViews> lent_;  // created when something is first lent; counts the writes from then on
  std::vector<c10::weak_intrusive_ptr<DTensorBody>> pending_views_;  // of this memory, with the same pending reductions
  std::atomic<bool> late_{false};                                    // pending_ is set
  std::function<Shards()> pending_;
  std::unique_ptr<Settled> settled_;
  AskSettled ask_settled_;
  std::mutex mutex_;  // see Note [Reading from several threads]
};

inline DTensorBody& body_of(const at::Tensor& tensor) {
  return *static_cast<DTensorBody*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// The same body as a counted pointer.
c10::intrusive_ptr<DTensorBody> shared_body_of(const at::Tensor& tensor);

// A distributed tensor of global form (sizes, strides, dtype) over the given body.
at::Tensor wrap(c10::intrusive_ptr<DTensorBody> body, c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides,
                caffe2::TypeMeta dtype);
at::Tensor wrap(Shards shards, const Layout* layout, c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides,
                caffe2::TypeMeta dtype);
// The same as a view of `base`: like LibTorch's views, it is a tensor of inference mode if `base` is one, whatever the
// mode is now.
at::Tensor wrap_view(const at::Tensor& base, c10::intrusive_ptr<DTensorBody> body, c10::ArrayRef<int64_t> sizes,
                     c10::ArrayRef<int64_t> strides, caffe2::TypeMeta dtype);

// Another handle to the same body: a shallow copy.
at::Tensor another_handle(const at::Tensor& tensor);

// Puts a note on the tensor's body, or removes it, and sets this handle's key for it, in place.
void attach_note(const at::Tensor& tensor, NotePtr note);

// The shards of `tensor` in another layout, to which `plan` leads; they may share memory with it.
Shards shards_in(const at::Tensor& tensor, const Layout* layout);
Shards shards_by(const at::Tensor& tensor, const Layout* layout, const Plan& plan);

}  // namespace intarsia
