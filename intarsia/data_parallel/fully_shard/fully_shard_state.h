#pragma once
// The groups that are sharded along one axis: which of them is whole, and what happens at the end of a backward pass.

#include <cstdint>
#include <memory>
#include <vector>

#include "intarsia/data_parallel/collective_order.h"
#include "intarsia/data_parallel/fully_shard/wrapped_modules.h"

namespace intarsia {

class ParamGroup;

// Note [A backward pass of fully_shard]
// When all gradients of a group are there, the group is reduced (begun, not waited for) and freed. Before each gathering and each
// reduction the ranks tell each other which group they are at, so that ranks that take different ways get an error instead
// of each other's numbers. At the end what is left is reduced, all reductions are waited for, the ranks report which
// parameters they used, and only then gradients are written. A rank whose pass fails says so in place of the next word.
class FullyShardState {
 public:
  explicit FullyShardState(CollectiveOrder& order) : collective_order_(order) {}
  static FullyShardState& of(CollectiveOrder& order);
  // Whether fully_shard was called on a module that somebody owns, on whatever mesh.
  static bool wrapped_somewhere(const torch::nn::Module& module);

  // In forward a whole is needed: the group before it may go.
  void used(ParamGroup& group);
  // An op has run that used this group together with others.
  void released(ParamGroup& group);
  // In backward a whole is needed, or a gradient has come. What expects no gradient is not freed by its reduction: it is when
  // another node needs another group.
  void used_in_backward(const std::shared_ptr<ParamGroup>& group);
  // A reduction of the group was begun. What it sends stays in memory until it is finished, so few are under way at a time.
  void reducing(const std::shared_ptr<ParamGroup>& group);
  // All ranks must be at this point.
  void word(int64_t user, int64_t part);
  void came(ParamGroup* group);
  void gone(const ParamGroup* group);
  WrappedModules& modules() { return modules_; }
  // The group is gathered: those that it names are begun, or else the one that came next in the last step.
  void gathered(ParamGroup& group, bool in_backward);

 private:
  void begin_ahead(ParamGroup& group);
  void arm();
  void end();
  void failed();
  void close_step();
  void write();
  void check_late_parameters();

  // The groups in the order of their gatherings, in this step and in the one before, for forward and for backward.
  struct Sequence {
    std::vector<ParamGroup*> now, before;
    ParamGroup* after(ParamGroup* group);  // null if that is not known
  };

  CollectiveOrder& collective_order_;
  WrappedModules modules_;
  std::vector<ParamGroup*> groups_;                   // all of them, in the order in which they came
  ParamGroup* last_ = nullptr;                        // used in forward
  Sequence sequences_[2];
  std::vector<ParamGroup*> ahead_;                    // begun, and not needed yet
  std::vector<std::shared_ptr<ParamGroup>> touched_;  // in this backward pass; the last one is the one used last
  const void* last_node_ = nullptr;                   // of autograd, that used it
  std::vector<std::shared_ptr<ParamGroup>> reduced_;  // in the order of their words: the same on all ranks
  std::vector<std::shared_ptr<ParamGroup>> reducing_;  // whose reductions may be under way, in order
  bool armed_ = false;
  bool all_know_ = false;  // the last error was one that all ranks raised
};

}  // namespace intarsia
