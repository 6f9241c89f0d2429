#pragma once
// Gradients of ops on per-rank tensors whose ranks differ in shape.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Note [Gradients rank by rank]
// LibTorch's gradient formulas, and its ops that are made of other ops, ask for sizes and branch on them: an empty
// shard goes another way than a full one. So where ranks differ, an op is recorded rank by rank: each rank calls the
// plain op on leaves of its own, and one node in the graph of the per-rank tensors holds these small graphs. Going
// back, it hands each rank its gradient and runs that rank's own graph. The numbers are those of the rank alone, by
// construction. Where all ranks have the same sizes, LibTorch's own kernel does it all at once. Plain tensors that an
// op made of other ops meets become one value per rank before that: it may make values of these alone and write the
// results of others into them (isclose does). If it may write to them (they need no gradient) or returns views, it is
// recorded rank by rank.
//
// A recorded op of several parts is one node, which adds up the gradients of an input that it uses twice (rms_norm)
// before others are added to them. A rank alone adds one after the other, so the last bit may differ: another reason to
// prefer LibTorch's kernel.
class RankByRank final : public c10::OperatorKernel {
 public:
  // `usual` is LibTorch's kernel.
  RankByRank(c10::SafeKernelFunction usual, bool composite) : usual_(std::move(usual)), composite_(composite) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  c10::SafeKernelFunction usual_;
  bool composite_;
};

}  // namespace intarsia
