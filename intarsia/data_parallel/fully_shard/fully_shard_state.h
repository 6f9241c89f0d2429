#pragma once
// The state of a model under fully_shard: its groups along one axis, in the order of their use.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/data_parallel/collective_order.h"
#include "intarsia/data_parallel/fully_shard/wrapped_modules.h"

namespace intarsia {

class ParamGroup;

// Note [A backward pass of fully_shard]
// When all gradients of a group have been computed, the group is reduced (started, not waited for) and resharded.
// Before each gather and each reduction the ranks agree on the group that comes next, so that ranks whose programs
// differ get an error instead of each other's values. When the pass ends, the remaining groups are reduced, all
// reductions are waited for, the ranks report which parameters they used, and only then are gradients written. A rank
// whose pass fails says so in its next agreement.
//
// Calls go one way: hooks and the program call the state, the state calls groups, and a group calls its parameters. A
// group reports by its return values.
class FullyShardState {
 public:
  using Group = std::shared_ptr<ParamGroup>;

  explicit FullyShardState(CollectiveOrder& order) : collective_order_(order) {}
  static FullyShardState& of(CollectiveOrder& order);
  static FullyShardState& of(const ParamGroup& group);
  // Whether fully_shard was called on the module, on whatever mesh.
  static bool wrapped_somewhere(const torch::nn::Module& module);

  void add(const Group& group);
  void remove(const ParamGroup& group);  // from the destructor of its hooks
  WrappedModules& modules() { return modules_; }

  // Called by the program.
  void begin_unshard(ParamGroup& group);
  void unshard(ParamGroup& group);
  void show_again(ParamGroup& group);  // after a write to shards: a group that is to be shown whole is that, anew

  // Called by an op, or the forward of a module: in forward the group before it may be resharded.
  void need_whole(const Group& group);
  void hold(ParamGroup& group, bool held);

  // Called by autograd.
  void before_gradient(const Group& group, size_t index, const at::Tensor& grad);
  void after_gradient(const Group& group, size_t index);

 private:
  // The groups in the order of their gathers, in this step and in the one before, for forward and for backward.
  struct Sequence {
    std::vector<ParamGroup*> now, before;
    ParamGroup* after(ParamGroup* group);  // null if unknown
  };

  void used_in_forward(ParamGroup& group);
  void used_in_backward(const Group& group);
  void gather(ParamGroup& group);
  void prefetch(ParamGroup& group, bool in_backward);
  void begin_ahead(ParamGroup& group);
  void reduce(const Group& group);
  void agree(int64_t group, int64_t phase);
  void arm();
  void end();
  void failed();
  void close_step();
  void write();
  void check_late_parameters();

  CollectiveOrder& collective_order_;
  WrappedModules modules_;
  std::vector<std::weak_ptr<ParamGroup>> groups_;  // all of them, in the order of creation
  ParamGroup* last_ = nullptr;                     // used in forward
  Sequence sequences_[2];
  std::vector<ParamGroup*> ahead_;   // started, and not needed yet
  std::vector<Group> touched_;       // in this backward pass; the last one is the one used last
  const void* last_node_ = nullptr;  // the autograd node that used it
  std::vector<Group> reduced_;       // in the order of the agreements: the same on all ranks
  std::vector<Group> reducing_;      // whose reductions may be in progress, in order
  bool armed_ = false;
  bool all_know_ = false;  // all ranks raised the last error
};

}  // namespace intarsia
