#pragma once
// The hooks of a parameter group: they forward what autograd and ops do with its leaves to the state of the model.

#include <memory>
#include <string>

#include "intarsia/data_parallel/fully_shard/fully_shard_state.h"
#include "intarsia/data_parallel/fully_shard/param_group.h"
#include "intarsia/data_parallel/fully_shard/param_handles.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {

class GroupHooks final : public LeafWatcher, public ParamOwner, public std::enable_shared_from_this<GroupHooks> {
 public:
  // The arguments are those of the group.
  GroupHooks(const void* module, std::string name, const ShardingAxes& axes, const NamedTensors& parameters,
             const Dims& dims, const FullyShardOptions& options);
  ~GroupHooks() override;
  void attach();  // from now on the parameters are shards

  // Lives as long as its hooks, and they as long as it.
  std::shared_ptr<ParamGroup> group() { return {shared_from_this(), &group_}; }

  void before_gradient(size_t index, const at::Tensor& grad) override { state_.before_gradient(group(), index, grad); }
  void after_gradient(size_t index) override { state_.after_gradient(group(), index); }

  void need_whole() override { state_.need_whole(group()); }
  void free_whole() override { group_.free_whole(); }
  void hold(bool held) override { state_.hold(group_, held); }
  bool take_data(size_t index, const at::Tensor& leaf, const at::Tensor& data) override;
  StandIn stand_in(size_t index, bool for_leaf) override { return group_.member(index).stand_in(for_leaf); }
  const at::Tensor& shards_of_leaf(size_t index) const override { return group_.members()[index].sharded(); }
  bool is_handle_of_shards(size_t index, const at::Tensor& tensor) const override {
    return group_.members()[index].is_handle_of_shards(tensor);
  }
  bool is_handle_of_whole(size_t index, const at::Tensor& tensor) const override {
    return group_.members()[index].is_handle_of_whole(tensor);
  }
  const std::string& name_of(size_t index) const override { return group_.members()[index].name(); }
  bool can_write_whole(size_t index) const override { return group_.members()[index].can_write_whole(); }
  void whole_was_written(size_t index) override { group_.whole_was_written(index); }
  void show_again() override { state_.show_again(group_); }
  bool is_shown() const override { return group_.is_shown(); }
  bool is_asked() const override { return group_.is_asked(); }
  bool is_pinned() const override { return group_.is_pinned(); }
  bool lies_on(const DeviceMesh& mesh) const override { return group_.lies_on(mesh); }

 private:
  void own_memories(size_t index);
  void disown_memories(size_t index) const;

  ParamGroup group_;
  FullyShardState& state_;
};

// The group of a leaf; null if it is in none.
std::shared_ptr<ParamGroup> group_of(const at::Tensor& leaf);

// Prepares the buffers of a module without a group for the groups inside it, which share them. With `init_sync` they
// are taken from the first rank.
void prepare_buffers(const ParamGroup& group, const NamedTensors& buffers, bool init_sync);

// Makes and starts a group for these parameters of a module: all ranks of the mesh call it together.
std::shared_ptr<ParamGroup> make_param_group(const void* module, const std::string& name, const ShardingAxes& axes,
                                             const NamedTensors& parameters, const Dims& dims,
                                             const NamedTensors& buffers, const FullyShardOptions& options);

}  // namespace intarsia
