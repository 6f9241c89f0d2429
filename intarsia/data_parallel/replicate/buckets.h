#pragma once
// Buckets: gradients side by side in flat buffers, so that many are sent as one message.

#include <memory>
#include <vector>

#include "intarsia/data_parallel/reduction.h"
#include "intarsia/data_parallel/replicate/replicate_options.h"
#include "intarsia/data_parallel/replicate/replicated_param.h"

namespace intarsia {

// Gradients of one dtype. A bucket is reduced when it has all of them.
//
// Note [Gradients that are lent]
// If gradients need not live in buckets, those of a large bucket are sent from where backward has left them, and their
// average is received into other memory: gradients are written only when all ranks have reported. Then the two swap
// places, so that the next step has memory for its averages. Nothing is copied, and a bucket takes as much memory as
// one that is filled.
struct Bucket {
  std::vector<size_t> members;  // numbers of leaves, in their order in the bucket
  int64_t bytes = 0;
  bool lends = false;                      // in this step
  std::vector<at::Tensor> lent, averages;  // by member; averages may be undefined before they are needed
  ReduceOp op = ReduceOp::avg;
  Shards values;                         // one flat buffer per slot; empty until the first gradient arrives
  std::shared_ptr<Reduction> reduction;  // while it is in progress
  Wait wait;                             // or this one, of a communication hook
  size_t missing = 0;                    // members whose gradient has not arrived
};

struct BucketSizes {
  int64_t first, others;  // bytes

  static BucketSizes of(
      const ReplicateOptions& options);  // an error unless both are above 0; the first is at most the cap
};

class Buckets {
 public:
  Buckets(const std::vector<ReplicatedParam>& leaves, const std::vector<size_t>& order, BucketSizes sizes);

  size_t size() const { return buckets_.size(); }
  Bucket& operator[](size_t bucket) { return buckets_[bucket]; }
  size_t bucket_of(size_t leaf) const { return places_[leaf].bucket; }

  // The memory for a leaf's gradient, per slot.
  Shards places_of(size_t leaf);
  // Copies the terms there; zeros if there are none.
  void put(size_t leaf, const Shards& terms);
  // Lends the gradient of a plain leaf; zeros if it is undefined.
  void lend(size_t leaf, const at::Tensor& grad);
  // The lent gradients and the memory for their averages, as flat tensors.
  std::pair<ShardsList, ShardsList> on_loan(Bucket& bucket);
  // The gradient becomes the average, multiplied by `scale`.
  void hand_over(size_t leaf, at::Tensor& grad, double scale);

 private:
  struct Place {
    size_t bucket = 0;
    size_t member = 0;
    std::vector<int64_t> begin;  // per slot
  };
  void make_room(Bucket& bucket);
  at::Tensor room_for(size_t leaf) const;

  const std::vector<ReplicatedParam>& leaves_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by leaf
};

}  // namespace intarsia
