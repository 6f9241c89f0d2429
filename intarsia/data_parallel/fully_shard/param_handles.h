#pragma once
// Finds out of which fully_shard parameter a tensor is a handle.
//
// Note [One parameter, seen from outside]
// A parameter of fully_shard has two values: a distributed tensor of shards, and the whole, which is in memory while it
// is used. Code that looks at the leaf sees the shards, whatever ran before: is_dtensor(p), to_local(p), a checkpoint
// and an optimizer find the same before and after a forward pass, and every handle (p.detach(), p.data()) is one of the
// shards. An op that needs the whole gets another tensor in place of the leaf, the stand-in: it uses the memory of the
// whole, has the version counter of the leaf, and its gradients go to the leaf's node. So whether that memory is filled
// is not visible outside. Two exceptions: after unshard() the leaf is the whole until reshard(), and in the forward of
// a module with hooks, which know when forward ends, the leaf is what the module's code expects: a plain tensor, of the
// dtype of the whole.

#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>

#include "intarsia/core/mesh.h"
#include "intarsia/tensor/at_rest.h"

namespace intarsia {

using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;

struct StandIn {
  at::Tensor tensor;
  NodePtr accumulator;  // of the leaf's gradient: keep it until the op has its edges; null if it needs none
};

// The owner of leaves with two values. `index` is the number of a leaf.
class ParamOwner {
 public:
  virtual ~ParamOwner() = default;
  virtual void need_whole() = 0;  // before an op of forward or backward
  // Before a write to shards, and after it: what is shown whole is gathered anew.
  virtual void free_whole() = 0;
  virtual void show_again() = 0;
  // What an op gets in place of a handle of the shards, once the whole is there.
  virtual StandIn stand_in(size_t index, bool for_leaf) = 0;
  virtual const at::Tensor& shards_of_leaf(size_t index) const = 0;
  virtual bool is_handle_of_shards(size_t index, const at::Tensor& tensor) const = 0;  // of all of them, not of a part
  virtual bool is_handle_of_whole(size_t index, const at::Tensor& tensor) const = 0;
  virtual const std::string& name_of(size_t index) const = 0;
  virtual void hold(bool held) = 0;  // an op that uses several owners' leaves: while it is held, the whole is not freed
  // Whether an op may write to the whole of a leaf, and that it has: its shards take over the values.
  virtual bool can_write_whole(size_t index) const = 0;
  virtual void whole_was_written(size_t index) = 0;
  // Whether the leaf itself is the whole, by unshard() or in its module's forward, and whether it is to be.
  virtual bool is_shown() const = 0;
  virtual bool is_asked() const = 0;
  virtual bool is_pinned() const = 0;                      // by its module's forward
  virtual bool lies_on(const DeviceMesh& mesh) const = 0;  // as shards
};

// What a tensor is in relation to the parameters of fully_shard.
enum class HandleKind {
  none,       // not one of ours
  leaf,       // the parameter itself
  shards,     // another handle of all of its shards, outside of autograd: p.detach(), p.data()
  whole,      // the stand-in, another handle of its memory, or a view
  computed,   // from wholes alone, without a graph: see Note [Reads are of the whole]
  undecided,  // made like a parameter without a graph: see Note [Undecided tensors]
};
struct Handle {
  HandleKind kind = HandleKind::none;
  std::shared_ptr<ParamOwner> owner;  // of a leaf, shards, and a whole
  size_t index = 0;
};
Handle handle_of(const at::Tensor& tensor);

// Whether a parameter and a plain tensor are at the same index of lists. Element i of a mapped list only meets the
// elements i of the others, so an optimizer may map over parameters of which some are plain.
bool meet_at_one_index(c10::ArrayRef<c10::IValue> lists);

// Records which parameter a storage belongs to. The owner calls both.
void own_storage(const at::Storage& storage, std::weak_ptr<ParamOwner> owner, size_t index, bool is_of_whole);
void disown_storage(const at::Storage& storage);

// at_rest asks here.
AtRest shards_at_rest();

}  // namespace intarsia
