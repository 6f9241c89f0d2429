#pragma once
// Gradients side by side in flat buffers, so that many travel as one message.

#include <memory>
#include <vector>

#include "intarsia/data_parallel/reduction.h"
#include "intarsia/data_parallel/replicate/replicate_options.h"
#include "intarsia/data_parallel/replicate/replicated_param.h"

namespace intarsia {

// Gradients of one dtype. A bucket is reduced when all of them are there.
//
// Note [Gradients that are lent]
// Where gradients are not to live in buckets, those of a large bucket travel from where backward has left them, and
// their average comes into other memory: gradients are written only when all ranks have reported. Then the two change
// places, so that the next step has memory for its averages. Nothing is copied, and a bucket takes as much memory as
// one that is filled.
struct Bucket {
  std::vector<size_t> members;  // numbers of leaves, in the order in which they lie
  int64_t bytes = 0;
  bool lends = false;                      // in this step
  std::vector<at::Tensor> lent, averages;  // by member; averages may be undefined before they are needed
  ReduceOp op = ReduceOp::avg;
  Shards values;                         // one flat buffer per slot; empty until the first gradient comes
  std::shared_ptr<Reduction> reduction;  // while it is under way
  Wait wait;                             // or this one, of a communication hook
  size_t missing = 0;                    // members whose gradient is not there
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

  // The place of a leaf's gradient, per slot.
  Shards places_of(size_t leaf);
  // Puts the terms there; zeros if there are none.
  void put(size_t leaf, const Shards& terms);
  // Lends the gradient of a plain leaf; zeros if it is undefined.
  void lend(size_t leaf, const at::Tensor& grad);
  // What is lent and where the averages go, as flat tensors.
  std::pair<ShardsList, ShardsList> on_loan(Bucket& bucket);
  // The gradient becomes the average, which is multiplied by `scale` before.
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
