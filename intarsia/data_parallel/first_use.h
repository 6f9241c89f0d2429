#pragma once
// Parameters that are whole while ops use them, and shards the rest of the time.
//
// Note [Gathered at first use]
// A parameter of fully_shard is one leaf with two values: a distributed tensor of shards, and the whole. Which one an op needs
// follows from the op: together with plain tensors the whole, in an optimizer the shards. So the leaf has one more
// key, above autograd, in both states (see Note [Tensors with a note] for a key of the same kind). The kernel there looks
// at the call, has the owner bring the leaf into the state that the call needs, and calls the op again. Modules need not know
// of it: hooks on modules only make the gathering earlier.
//
// Views of the whole have the key too. What an op computes from the whole may be needed again in backward, after the whole has
// been freed: the kernel puts a hook on the op's node that has the owner gather it before the node runs. Memory is freed by
// making the storage empty and filled again in place, so views that autograd has saved stay valid.

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include "intarsia/core/keys.h"
#include "intarsia/core/mesh.h"

namespace intarsia {

// Who owns a leaf with two values.
class TwoValued {
 public:
  virtual ~TwoValued() = default;
  virtual void need_whole() = 0;   // before an op of forward or backward
  virtual void need_shards() = 0;  // before an op of an optimizer, or a write
  // set_data on the leaf: it is the shards of this value from now on.
  virtual void take_value(const at::Tensor& leaf, const at::Tensor& value) = 0;
  virtual void hold(bool held) = 0;  // an op that uses several owners' leaves: while it is held, the whole is not freed
  virtual at::Tensor shards_for(const at::Tensor& whole) const = 0;  // the shards in place of another handle of the whole
  virtual bool is_pinned() const = 0;  // whether its module's forward is running, so that all reads are of the whole
  virtual bool lies_on(const DeviceMesh& mesh) const = 0;  // as shards
};

// A plain tensor with the key over this memory.
at::Tensor make_whole(at::Storage storage, at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype);
// The same distributed tensor with the key.
at::Tensor with_first_use_key(const at::Tensor& dtensor);

// Whose memory a storage is, for views of a whole. The owner calls both.
void own_storage(const at::Storage& storage, std::weak_ptr<TwoValued> owner);
void disown_storage(const at::Storage& storage);

}  // namespace intarsia
