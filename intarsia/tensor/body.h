#pragma once
// The body of a distributed tensor: what hangs on an at::Tensor with the key PrivateUse3.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include "intarsia/core/keys.h"
#include "intarsia/core/layout.h"
#include "intarsia/core/shards.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

// Note [Tensors with a note]
// A tensor may carry a note for the ops that use it: a parallel style says on a parameter how `linear` prepares its input
// and leaves its output (nn/). Such a tensor has one more key, above autograd, where those ops have kernels and all others
// fall through. LibTorch keeps this key free for libraries and has no kernel on it, so tensors without a note pay nothing.
// clone, to and detach hand the note on, and set_data of a distributed tensor keeps it.
using NotePtr = c10::intrusive_ptr<c10::intrusive_ptr_target>;

// Note [Views that communicate]
// A view op whose result lies on the same ranks as its base is a view of the local tensors, and writing through it
// changes the base by itself. Where the result has to be brought together from other ranks (row 3 of a tensor cut by
// rows), its shards are a copy. Such a view keeps a recipe: the base and the op that made it. A write to the view is
// carried back into the base, and a view whose base has changed is made anew before it is read. Printing is no reading:
// it shows what was last known and says so.
struct Recipe {
  at::Tensor base;  // the distributed tensor that is viewed
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // of the op; the viewed tensor's place is left empty
  size_t self;                    // that place
  size_t output;                  // which result of the op this is
  std::vector<int64_t> sizes;     // global, of that result
  uint64_t seen;                  // version of the base that the copy shows
  // The view is a reshape of the local tensors that some rank had to copy, for its strides. Another rank may not have
  // had to, so keeping in step must not communicate: the copy has the elements of the base's shard, in order.
  bool local = false;
};

// Note [Reading from several threads]
// Several threads may read one tensor. Three reads change the body: the first read of a value that is still on its way,
// of a view whose base has changed, and of a pending reduction. Each takes the lock of the body it changes, on its rare
// path alone; a view takes its own lock before that of its base. Writing needs the caller's care, as with plain tensors.
class DTensorBody final : public c10::BackendMeta {
 public:
  DTensorBody(Shards shards, const Layout* layout) : layout(layout), shards_(std::move(shards)) {}

  const Layout* layout;
  NotePtr note;  // null for most; see Note [Tensors with a note]

  // The local tensors, finished and up to date.
  const Shards& shards() {
    if (C10_UNLIKELY(late_.load(std::memory_order_acquire))) finish();
    if (C10_UNLIKELY(memory().recipe_ != nullptr)) memory().refresh();
    return shards_;
  }

  // The local tensors as they were last read: a view whose base has changed since may show old values. Never communicates.
  const Shards& last_known_shards() {
    if (late_.load(std::memory_order_acquire)) finish();
    return shards_;
  }
  // Whether shards() would communicate: the tensor is a view that does, and its base has changed.
  bool is_stale();

  // Who owns the memory that the shards view.
  DTensorBody& memory() { return base_ ? *base_ : *this; }
  uint64_t version() { return memory().version_; }

  // To be called after the shards have been written to.
  void written();

  void view_memory_of(const c10::intrusive_ptr<DTensorBody>& base);
  void follow(std::unique_ptr<Recipe> recipe) { recipe_ = std::move(recipe); }
  void arrive_later(std::function<Shards()> finish);

  // The value of a pending reduction is often asked for several times (an optimizer reads a gradient thrice): the
  // reduced shards are kept until the tensor changes.
  // Other layouts are made from them, too: a second reduction could round otherwise, and the gradient of amax looks for
  // the very values that the forward pass found.
  struct Settled {
    const Layout* layout;
    uint64_t version;
    Shards shards;
  };
  // The settled value, made by `settle` if it is not known yet: by one thread for all.
  Settled settled(const std::function<Settled()>& settle);

 private:
  void finish();
  void refresh();
  void write_back();

  Shards shards_;
  uint64_t version_ = 0;
  c10::intrusive_ptr<DTensorBody> base_;  // null if the memory is its own
  std::unique_ptr<Recipe> recipe_;
  std::atomic<bool> late_{false};  // pending_ is set
  std::function<Shards()> pending_;
  std::unique_ptr<Settled> settled_;
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

// A shallow copy: the same body under a new handle.
at::Tensor another_handle(const at::Tensor& tensor);

// Puts a note on the tensor's body, or takes it away, and gives this handle the key for it, in place.
void attach_note(const at::Tensor& tensor, NotePtr note);

// The shards of `tensor` in another layout; may share memory with it. The plan leads there.
Shards shards_in(const at::Tensor& tensor, const Layout* layout);
Shards shards_by(const at::Tensor& tensor, const Layout* layout, const Plan& plan);

}  // namespace intarsia
