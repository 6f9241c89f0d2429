#include "intarsia/data_parallel/fully_shard/post_forward_shards.h"

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// The mesh with its last axis in two: groups, and ranks of a group.
DeviceMesh with_groups(const DeviceMesh& mesh, int64_t size) {
  auto ranks = mesh.ranks().vec();
  auto shape = mesh.shape().vec();
  auto whole = shape.back();
  shape.back() = whole / size;
  shape.push_back(size);
  shape.insert(shape.begin(),
               static_cast<int64_t>(ranks.size()) / mesh.size());  // a slice of a mesh has several side by side
  std::vector<std::string> names;
  for (size_t axis = 0; axis < shape.size(); ++axis) names.push_back("kept" + std::to_string(axis));
  return DeviceMesh(mesh.device_type(), shape, ranks, names);
}

size_t memory_of(const ShardedParam& member, size_t slot) { return member.memories().size() == 1 ? 0 : slot; }

}  // namespace

PostForwardShards::PostForwardShards(const ShardingAxes& axes, int64_t size) {
  auto all = axes.shard->size();
  TORCH_CHECK_VALUE(size > 1 && size < all && all % size == 0,
                    "[fully_shard] parameters are to be resharded to groups of ", size, " ranks, but ", all,
                    " ranks share them. Choose a factor of that above 1.");
  mesh_ = with_groups(axes.mesh, size);
  axis_ = &Axis::of(mesh_, mesh_.ndim() - 1);
  for (size_t slot = 0; slot < mesh_.slots().size(); ++slot) {
    TORCH_CHECK_NOT_IMPLEMENTED(mesh_.slots()[slot].rank == axes.mesh.slots()[slot].rank,
                                "[fully_shard] resharding to a smaller group on ", axes.mesh.text(), ".");
  }
}

void PostForwardShards::keep(std::vector<ShardedParam>& members, uint64_t version) {
  parts_.clear();
  for (auto& member : members) {
    auto& parts = parts_.emplace_back();
    for (size_t slot = 0; slot < axis_->slot_count(); ++slot) {
      auto whole = member.memories()[memory_of(member, slot)].view(-1);
      auto run = chunk_of(whole.numel(), axis_->size(), axis_->position(slot));
      parts.push_back(whole.narrow(0, run.begin, run.size()).clone());
    }
  }
  version_ = version;
}

void PostForwardShards::drop() {
  parts_.clear();
  version_.reset();
}

void PostForwardShards::gather(std::vector<ShardedParam>& members, ShardsList& rooms, Wait* wait) const {
  CountsList counts;
  rooms.clear();
  for (auto& member : members) {
    auto& room = rooms.emplace_back();
    auto& rows = counts.emplace_back();
    for (size_t slot = 0; slot < axis_->slot_count(); ++slot) {
      bool own = memory_of(member, slot) == slot;  // simulated ranks may share one whole: that of the first is kept
      room.push_back(own ? member.place_in(slot).view(-1) : at::empty_like(room[0]));
      auto& row = rows.emplace_back();
      for (int64_t j = 0; j < axis_->size(); ++j) row.push_back(chunk_of(room.back().numel(), axis_->size(), j).size());
    }
  }
  all_gather(*axis_, parts_, rooms, counts, wait);
}

}  // namespace intarsia
