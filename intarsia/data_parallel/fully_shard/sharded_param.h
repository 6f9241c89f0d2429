#pragma once
// One parameter of fully_shard: its shards, the whole that is gathered from them, and its gradient.

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/core/shards.h"
#include "intarsia/data_parallel/fully_shard/gradient_state.h"
#include "intarsia/data_parallel/fully_shard/param_handles.h"
#include "intarsia/data_parallel/fully_shard/param_layouts.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {

class ShardedParam {
 public:
  // `dim`: the sharded one; none: every rank keeps the whole (scalars).
  ShardedParam(std::string name, const at::Tensor& leaf, const ShardingAxes& axes, std::optional<int64_t> dim,
               std::optional<at::ScalarType> dtype_of_whole);

  const std::string& name() const { return name_; }
  at::Tensor leaf() const { return leaf_.lock(); }
  const std::vector<at::Tensor>& memories() const { return memories_; }  // of the whole
  const at::Tensor& sharded() const { return sharded_; }
  bool is_handle_of_shards(const at::Tensor& tensor) const;  // not of a part of them
  bool is_handle_of_whole(const at::Tensor& tensor) const;   // the same
  uint64_t version() const;                                  // grows when shards are written, through any handle
  bool has_data() const { return !memories_[0].is_meta(); }
  at::ScalarType dtype() const { return dtype_; }  // of the shards
  int64_t bytes_of_whole() const;                  // that a rank holds

  // Gathering: what each slot sends, where it receives, and the whole made from that.
  Shards outgoing() const;
  Shards incoming();
  Counts counts() const;
  void arrived(const Shards& incoming);
  at::Tensor place_in(size_t memory) const;  // the memory of the whole, allocated if it has none

  // What ops get in place of the leaf, or of another handle of its shards, while the whole is in memory.
  StandIn stand_in(bool for_leaf);
  NodePtr accumulator() const;  // of the leaf's gradient, if a graph has one

  // What code that looks at the leaf sees. Ops do not ask: see Note [One parameter, seen from outside].
  void show_whole();
  void show_shards();
  void free_whole();
  // An op may write to the memory of the whole if that holds the same numbers as the shards, which then take them over.
  bool can_write_whole() const;
  void take_written_whole();
  // The shards become those of `value`, of any dtype: a whole one, or one that is laid out as the shards or as the
  // whole are.
  void replace(const at::Tensor& value);

  // Reducing: each rank's parts of a gradient of the whole (zeros if it has none), one after the other, in `dtype`; and
  // the gradient of the shards made from the reduced parts, which is added to the leaf's.
  Shards parts_of_gradient(at::ScalarType dtype) const;
  Counts gradient_counts() const;
  void add_gradient(const Shards& parts, bool pending_over_copies);
  // Terms of the average over copies that earlier passes have left in the leaf's gradient; removes them there.
  Shards take_pending_over_copies();

  // Note [Gradients that wait]
  // Without sync, gradients of the whole add up on each rank. The leaf shows their sum as what it is: a distributed
  // tensor whose average is pending, [P(avg)]. So zero_grad clears it, an optimizer reads the right value, and the next
  // pass with sync reduces it. A reduced gradient that the leaf already has becomes a part of the sum: see add_reduced.

  // The events of GradientEvent. Gradients left by earlier passes are added with the first one, or by fetch_pending.
  void before_accumulate();
  void after_accumulate();
  void defer_gradient(std::optional<at::ScalarType> dtype);  // [P(avg)], in this dtype
  void fail_gradient();  // drops what autograd was adding to; keeps what it has brought
  void drop_gradient();  // drops that as well
  GradientState gradient_state() const { return gradient_.state(); }
  // A term times this is a term of the average over all ranks: not 1 if gradients are divided by another number.
  void set_average_scale(double scale) { average_scale_ = scale; }
  bool has_pending() const { return gradient_.is_pending(); }
  std::vector<const Layout*> layouts_of_gradients() const;  // that the leaf may show
  void fetch_pending();                                     // if there is any
  bool has_gradient() const { return gradient_.unreduced().defined(); }
  at::ScalarType gradient_dtype() const {
    return has_gradient() ? gradient_.unreduced().scalar_type() : whole_.scalar_type();
  }

 private:
  void show(const at::Tensor& value);
  void remember_accumulator(const at::Tensor& holder, const NodePtr& node);
  at::Tensor piece(const at::Tensor& whole, int64_t member) const;
  const std::vector<int64_t>& whole_sizes(size_t slot) const {
    return memories_sizes_[memories_sizes_.size() == 1 ? 0 : slot];
  }
  std::vector<int64_t> local_sizes(size_t slot, int64_t member) const;
  void make_values(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole);
  void take_shards(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole);
  void take_form_of(const at::Tensor& local);
  bool is_spread() const { return !rest_.data_of_whole.empty(); }  // the whole, over the axes of data parallelism
  const Layout* layout_of_gradient() const;
  const Layout* pending_layout() const;
  const Layout* pending_over_copies() const;
  Shards terms_of_gradient() const;
  at::Tensor with_dtype(const at::Tensor& grad, at::ScalarType dtype) const;
  at::Tensor sum_of_terms(const at::Tensor& grad) const;
  void add_reduced(Shards& terms, const at::Tensor& grad) const;
  at::Tensor dtensor_of(Shards locals, const Layout* layout) const;

  std::string name_;
  WeakTensor leaf_;
  const ShardingAxes& axes_;
  std::optional<int64_t> dim_;
  at::ScalarType dtype_;
  bool whole_follows_dtype_;
  ParamLayouts rest_;
  std::vector<int64_t> sizes_;
  at::Tensor whole_, sharded_;  // the two values
  // What the whole consists of: one tensor, or one per slot if the whole is itself distributed.
  std::vector<at::Tensor> memories_;
  std::vector<std::vector<int64_t>> memories_sizes_;
  GradientSlot gradient_;
  double average_scale_ = 1;
  c10::weak_intrusive_ptr<torch::autograd::Node> accumulator_{NodePtr()};
};

}  // namespace intarsia
