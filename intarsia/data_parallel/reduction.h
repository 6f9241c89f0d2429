#pragma once
// The sum of flat buffers over an axis, started now and finished later, with the same bits everywhere.
//
// Note [The same bits everywhere]
// A reduction is a reduce_scatter and an all_gather, or, if the buffers are small, one all_gather of everything. Both
// add in the order of the line. So a simulation, two engines, and ranks that run at different speeds get the same bits,
// which a backend's all_reduce does not guarantee.

#include "intarsia/comm/packed.h"

namespace intarsia {

class Reduction {
 public:
  // `values`: one flat buffer per slot, equally long on all ranks of a line. They become the sums (or averages) in
  // place, and this object owns them until then.
  Reduction(const Axis& axis, Shards values, ReduceOp op);
  // Puts the sums of the flat tensors `from` into `to`, without copying large ones. `from` must not change before
  // advance is over.
  Reduction(const Axis& axis, ShardsList from, ShardsList to, ReduceOp op);

  // Whether one exchange of everything is faster than two of parts, for buffers of that many bytes.
  static bool is_small(const Axis& axis, int64_t bytes);

  void begin();    // sends what this rank has
  void advance();  // waits for the others' parts, adds them up, and sends the sum on
  void finish();   // waits for the others' sums

 private:
  void begin_list();
  void gather_all();
  void reduce_gathered();

  const Axis& axis_;
  Shards values_;
  ShardsList from_, to_, list_parts_;
  CountsList list_counts_;
  ReduceOp op_;
  bool small_;
  Shards parts_;  // of reduce_scatter, or what all ranks sent
  Counts counts_;
  Wait wait_;
  bool advanced_ = false;
};

}  // namespace intarsia
