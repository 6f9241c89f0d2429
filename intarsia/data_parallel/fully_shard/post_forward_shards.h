#pragma once
// What ranks keep of a whole between forward and backward if they reshard to a smaller group: each a part, so that a
// few ranks together have all of it.

#include <optional>

#include "intarsia/comm/packed.h"
#include "intarsia/data_parallel/fully_shard/sharded_param.h"

namespace intarsia {

class PostForwardShards {
 public:
  // `size` consecutive ranks along the sharding axis of `axes` have a whole together.
  PostForwardShards(const ShardingAxes& axes, int64_t size);

  int64_t size() const { return axis_->size(); }
  // Takes this rank's parts of the members, which are whole, as of `version`.
  void keep(std::vector<ShardedParam>& members, uint64_t version);
  bool has(uint64_t version) const { return version_ == version; }
  void drop();

  // Gathers into the members' memory. `rooms` must live until the gather has been waited for.
  void gather(std::vector<ShardedParam>& members, ShardsList& rooms, Wait* wait) const;

 private:
  DeviceMesh mesh_;
  const Axis* axis_;
  ShardsList parts_;  // by member and slot, flat
  std::optional<uint64_t> version_;
};

}  // namespace intarsia
