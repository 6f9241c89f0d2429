#pragma once
// A group of parameters that are gathered together before use and freed after it, and whose gradients are reduced to
// shards together.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/comm/packed.h"
#include "intarsia/data_parallel/collective_order.h"
#include "intarsia/data_parallel/fully_shard/custom_collective.h"
#include "intarsia/data_parallel/fully_shard/fully_shard_options.h"
#include "intarsia/data_parallel/fully_shard/post_forward_shards.h"
#include "intarsia/data_parallel/fully_shard/sharded_param.h"
#include "intarsia/data_parallel/fully_shard/shared_buffers.h"
#include "intarsia/data_parallel/step_report.h"
#include "intarsia/data_parallel/sync_module_states.h"

namespace intarsia {

// Changes reduced gradients in place before they are written: those of one dtype, side by side, one flat tensor per
// hosted rank.
using ReducedHook = std::function<void(const Shards& flat)>;

// For each parameter, the dim along which it is sharded; none: every rank keeps the whole.
using Dims = std::vector<std::optional<int64_t>>;

constexpr const char* kShardCause = "fully_shard";

// A group only handles itself: it does not know the other groups, nor the state that has them all, and reports to the
// state by its return values.
class ParamGroup final {
 public:
  ParamGroup(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
             const Dims& dims, const FullyShardOptions& options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const void* module() const { return module_; }
  const std::string& name() const { return name_; }
  const DeviceMesh& mesh() const { return axes_.mesh; }
  CollectiveOrder& order() const { return collective_order_; }
  int64_t id() const { return id_; }  // in this order
  const std::vector<ShardedParam>& members() const { return members_; }
  ShardedParam& member(size_t index) { return members_[index]; }
  const std::vector<BufferList>& buffers() const { return buffers_; }  // that are shared
  void share_buffers(BufferList buffers) { buffers_.push_back(std::move(buffers)); }
  bool is_whole() const { return whole_; }  // in memory; what the leaves show is a different question: see is_shown
  bool is_begun() const { return begun_; }  // whether its gather has started
  bool reshards_after_forward() const { return options_.reshard_after_forward.value_or(!is_root_); }
  int64_t bytes() const;

  void set_name(const std::string& name);  // its path, once it is inside another module
  void set_root(bool root) { is_root_ = root; }
  void set_reshard_after_forward(bool reshards) { options_.reshard_after_forward = reshards; }
  void set_reshard_after_backward(bool reshards) { reshard_after_backward_ = reshards; }
  void set_syncs(bool syncs) { syncs_ = syncs; }
  // Without, gradients are reduced over the shards, and the average over the copies of a mesh of two axes waits.
  void set_syncs_copies(bool syncs) { syncs_copies_ = syncs; }
  void set_divide_factor(std::optional<double> factor);
  void set_pinned(bool pinned);  // in the forward of its module, which hooks report
  void set_reduced_hook(ReducedHook hook) { reduced_hook_ = std::move(hook); }
  // Replaces the engine's messages; none: the engine's again.
  void set_custom_all_gather(std::optional<CustomCollective> own) { custom_all_gather_ = std::move(own); }
  void set_custom_reduce_scatter(std::optional<CustomCollective> own) { custom_reduce_scatter_ = std::move(own); }
  void set_unused_as_zeros(bool zeros) { options_.unused_as_zeros = zeros; }
  // The groups to prefetch when this one is gathered, in forward or in backward; none: those of the last step.
  void set_prefetched(bool in_backward, std::vector<std::weak_ptr<ParamGroup>> groups) {
    prefetched_[in_backward] = std::move(groups);
  }
  std::vector<std::shared_ptr<ParamGroup>> prefetched(bool in_backward) const;

  // The two halves of a gather. Before the first, the ranks agree on it, if several share the parameters. The second
  // returns false if shards were written since they were sent: then both halves are repeated.
  void check_has_data() const;
  bool is_shared() const { return axes_.shard->size() > 1; }
  void begin_unshard();
  bool finish_unshard();
  void reshard_if_written();             // the whole is out of date if shards were written through another handle
  void show_whole();                     // for the program: the leaves are the whole until they are resharded
  void show_if_asked();                  // by the program, or by the module's forward
  void whole_was_written(size_t index);  // the whole of a member, by an op: its shards take over the values

  void reshard();
  void reshard_after_forward();  // not where backward recomputes
  void reshard_after_backward();
  void need_shards();      // unshard() and the forward of a module do not keep it whole any more
  void free_whole();       // they do: show_if_asked, once it is gathered again
  bool is_frozen() const;  // no parameter of it requires grad
  bool is_shown() const { return shown_; }
  bool is_pinned() const { return pinned_; }
  bool is_held() const { return pinned_ || holds_ > 0; }
  bool is_asked() const { return asked_ || pinned_; }            // to be shown whole
  bool stays_in_forward() const { return asked_ || is_held(); }  // when the next group is used
  bool hold(bool held);                                          // whether somebody still holds it: see ParamOwner
  bool lies_on(const DeviceMesh& mesh) const;

  void before_gradient(size_t index, const at::Tensor& grad);
  bool after_gradient(size_t index);  // whether the group is to be reduced: all gradients of this pass have arrived
  // Reducing: what the ranks agree on first, and the first half; finish_reductions is the second half.
  enum Phase : int64_t { kGather = 0, kReduce = 1 };
  int64_t reduce_phase() const;  // differs between ranks that have other parameters frozen
  void begin_reduction();

  // For the end of a backward pass: see FullyShardState.
  bool is_unreduced() const;  // gradients are left, also from earlier passes without sync
  void finish_reductions();
  void write_gradients(const StepReports& reports, size_t first);
  void forget_step();
  void append_uses(std::vector<Use>& uses) const;
  bool unused_as_zeros() const { return options_.unused_as_zeros; }

 private:
  struct Round {  // one reduction of the group
    std::vector<size_t> members;
    ShardsList parts;
    Wait wait;
    bool finished = false;
  };
  void show(bool whole);
  void begin_gathering();
  void wait_for_gathering();
  uint64_t version() const;
  bool all_came() const;
  bool waits_for_copies() const { return axes_.replicate && !syncs_copies_; }
  void reduce_over_shards(Round& round, const ShardsList& send, const CountsList& counts);
  void reduce_over_copies(Round& round);
  void divide(Round& round) const;
  void run_reduced_hook(const Round& round) const;

  const void* module_;
  std::string name_;
  ShardingAxes axes_;
  CollectiveOrder& collective_order_;
  int64_t id_ = 0;
  FullyShardOptions options_;  // without ignored_parameters and shard_dim
  std::vector<BufferList> buffers_;
  std::vector<ShardedParam> members_;
  const char* cause_;
  bool is_root_ = true, reshard_after_backward_ = true, syncs_ = true, syncs_copies_ = true, pinned_ = false;
  int holds_ = 0;
  std::optional<double> divide_factor_;
  ReducedHook reduced_hook_;
  std::optional<CustomCollective> custom_all_gather_, custom_reduce_scatter_;
  std::vector<std::weak_ptr<ParamGroup>> prefetched_[2];

  bool whole_ = false;   // in memory
  bool shown_ = false;   // and the leaves are the whole: see Note [One parameter, seen from outside]
  bool asked_ = false;   // requested by unshard()
  ShardsList incoming_;  // of a gather in progress
  Wait gathering_;
  std::optional<PostForwardShards> post_forward_;
  bool from_post_forward_ = false;  // the gather in progress
  bool begun_ = false;
  uint64_t gathered_version_ = 0;  // of the shards that were sent

  std::vector<bool> came_;  // by member: arrived in this backward pass, and not yet reduced
  std::vector<bool> used_;  // there was a gradient to reduce since gradients were last written
  std::vector<Round> rounds_;
};

}  // namespace intarsia
