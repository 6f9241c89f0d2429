#pragma once
// Parameters that are gathered together before use and freed after it, and whose gradients are reduced to shards together.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/comm/packed.h"
#include "intarsia/data_parallel/agree.h"
#include "intarsia/data_parallel/first_use.h"
#include "intarsia/data_parallel/kept_parts.h"
#include "intarsia/data_parallel/lane.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/own_collective.h"
#include "intarsia/data_parallel/report.h"
#include "intarsia/data_parallel/shard_order.h"
#include "intarsia/data_parallel/shared_buffers.h"
#include "intarsia/data_parallel/two_values.h"

namespace intarsia {

struct ShardGroupOptions {
  std::function<std::optional<int64_t>(const std::string& name, const at::Tensor& parameter)> dim_of;
  std::optional<bool> reshard_after_forward;
  std::optional<at::ScalarType> param_dtype, reduce_dtype;
  bool unused_as_zeros = false;
  std::optional<int64_t> reshard_to = {};  // ranks that together keep a whole between forward and backward
  bool replicated = false;  // nothing is cut, and gradients are averaged over the one axis of the mesh
  bool on_full_mesh = false;  // see ShardingAxes
  bool broadcast_buffers = false;  // after each step buffers are those of the first rank
};

// Changes reduced gradients in place before they are written: those of one dtype, side by side, one flat tensor per hosted rank.
using ReducedHook = std::function<void(const Shards& flat)>;

constexpr const char* kShardCause = "fully_shard";

class ShardGroup final : public LeafWatcher, public TwoValued, public std::enable_shared_from_this<ShardGroup> {
 public:
  ShardGroup(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
             const ShardGroupOptions& options);
  ~ShardGroup() override;
  void start();  // from now on the parameters are shards

  const void* module() const { return module_; }
  const std::string& name() const { return name_; }
  const DeviceMesh& mesh() const { return axes_.mesh; }
  ShardOrder& order() const { return order_; }
  const std::vector<TwoValues>& members() const { return members_; }
  const std::vector<BufferList>& buffers() const { return buffers_; }  // that are shared
  void share_buffers(BufferList buffers) { buffers_.push_back(std::move(buffers)); }
  bool is_whole() const { return whole_; }  // in memory; what the leaves are is another matter: see is_shown
  bool is_begun() const { return begun_; }  // its gathering
  bool reshards_after_forward() const { return options_.reshard_after_forward.value_or(!is_root_); }
  int64_t bytes() const;

  void set_name(const std::string& name);  // its path, once it is inside another
  void set_root(bool root) { is_root_ = root; }
  void set_reshard_after_forward(bool reshards) { options_.reshard_after_forward = reshards; }
  void set_reshard_after_backward(bool reshards) { reshard_after_backward_ = reshards; }
  void set_syncs(bool syncs) { syncs_ = syncs; }
  // Without, gradients are reduced over the shards, and the average over the copies of a mesh of two axes waits.
  void set_syncs_copies(bool syncs) { syncs_copies_ = syncs; }
  void set_divide_factor(std::optional<double> factor);
  void set_pinned(bool pinned);  // in the forward of its module, as hooks know it
  void set_reduced_hook(ReducedHook hook) { reduced_hook_ = std::move(hook); }
  // In place of the engine's messages; none: the engine's again.
  void set_own_gather(std::optional<OwnCollective> own) { own_gather_ = std::move(own); }
  void set_own_reduce(std::optional<OwnCollective> own) { own_reduce_ = std::move(own); }
  void set_unused_as_zeros(bool zeros) { options_.unused_as_zeros = zeros; }
  // Groups whose gathering is begun when this one is gathered, in forward or in backward; none: as the last step tells.
  void set_prefetched(bool in_backward, std::vector<std::weak_ptr<ShardGroup>> groups) { prefetched_[in_backward] = std::move(groups); }
  std::vector<std::shared_ptr<ShardGroup>> prefetched(bool in_backward) const;

  void begin_unshard();
  void unshard();  // for the program: the leaves are the whole until they are resharded
  void reshard();
  void reshard_after_forward();  // not where backward recomputes
  void reshard_after_backward();
  bool is_frozen() const;  // no parameter of it requires grad

  void need_whole() override;
  void need_shards() override;
  StandIn stand_in(size_t index, bool for_leaf) override { return members_[index].stand_in(for_leaf); }
  const at::Tensor& shards_of_leaf(size_t index) const override { return members_[index].sharded(); }
  bool is_handle_of_shards(size_t index, const at::Tensor& tensor) const override {
    return members_[index].is_handle_of_shards(tensor);
  }
  bool is_handle_of_whole(size_t index, const at::Tensor& tensor) const override {
    return members_[index].is_handle_of_whole(tensor);
  }
  const std::string& name_of(size_t index) const override { return members_[index].name(); }
  void take_value(const at::Tensor& leaf, const at::Tensor& value) override;
  void hold(bool held) override;
  bool is_shown() const override { return shown_; }
  bool is_pinned() const override { return pinned_; }
  bool is_held() const { return pinned_ || holds_ > 0; }
  bool lies_on(const DeviceMesh& mesh) const override;

  void before_gradient(size_t index, const at::Tensor& grad) override;
  void after_gradient(size_t index) override;

  // For the end of a backward pass: see ShardOrder.
  void reduce_rest();  // also what earlier passes have added up without sync
  void finish_reductions();
  void write_gradients(const Reports& reports, size_t first);
  void forget_step();
  void append_uses(std::vector<Use>& uses) const;
  bool unused_as_zeros() const { return options_.unused_as_zeros; }

 private:
  enum Word : int64_t { kGather = 0, kReduce = 1 };  // what the group is at
  struct Round {  // one reduction of the group
    std::vector<size_t> members;
    ShardsList parts;
    Wait wait;
    bool finished = false;
  };
  void check_has_data() const;
  void gather();
  void show(bool whole);
  void wait_for_gathering();
  uint64_t version() const;
  bool all_came() const;
  bool waits_for_copies() const { return axes_.replicate && !syncs_copies_; }
  void reduce();
  void own_memories(size_t index);
  void disown_memories(const TwoValues& member) const;
  void reduce_over_shards(Round& round, const ShardsList& send, const CountsList& counts);
  void reduce_over_copies(Round& round);
  void divide(Round& round) const;
  void run_reduced_hook(const Round& round) const;
  int64_t fingerprint() const;

  const void* module_;
  std::string name_;
  ShardingAxes axes_;
  Lane& lane_;
  ShardOrder& order_;
  int64_t user_ = 0;
  ShardGroupOptions options_;
  std::vector<BufferList> buffers_;
  std::vector<TwoValues> members_;
  const char* cause_;
  bool is_root_ = true, reshard_after_backward_ = true, syncs_ = true, syncs_copies_ = true, pinned_ = false;
  int holds_ = 0;
  std::optional<double> divide_factor_;
  ReducedHook reduced_hook_;
  std::optional<OwnCollective> own_gather_, own_reduce_;
  std::vector<std::weak_ptr<ShardGroup>> prefetched_[2];

  bool whole_ = false;  // in memory
  bool shown_ = false;  // and the leaves are the whole: see Note [One parameter, seen from outside]
  bool asked_ = false;  // by unshard()
  ShardsList incoming_;  // of a gathering that is under way
  Wait gathering_;
  std::optional<KeptParts> kept_;
  bool from_kept_ = false;  // the gathering that is under way
  bool begun_ = false;
  uint64_t gathered_version_ = 0;  // of the shards that were sent

  std::vector<bool> came_;       // by member: in this backward pass, and not yet reduced
  std::vector<bool> used_;       // there was a gradient to reduce since gradients were last written
  std::vector<Round> rounds_;
};

// Makes the buffers of a module without a group ready for one inside of it, which is to share them. With `init_sync` they are taken
// from the first rank.
void prepare_buffers(const ShardGroup& group, const NamedTensors& buffers, bool init_sync);

// A group for these parameters of a module, at work: all ranks of the mesh call it together. With `init_sync` the parameters are
// taken from the first rank.
std::shared_ptr<ShardGroup> make_shard_group(const void* module, const std::string& name, const DeviceMesh& mesh,
                                             const NamedTensors& parameters, const NamedTensors& buffers,
                                             const ShardGroupOptions& options, bool init_sync);

}  // namespace intarsia
