#pragma once
// Gradients of ops on per-rank tensors whose shapes differ between the ranks.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {

// Note [Gradients rank by rank]
// LibTorch's gradient formulas and composite ops ask for sizes and branch on them: an empty shard takes another path
// than a full one. So if ranks differ, an op is recorded rank by rank: each rank calls the plain op on its own leaves,
// and one node in the graph of the per-rank tensors holds these small graphs. In backward, the node hands each rank its
// gradient and runs that rank's graph, so the numbers are those of the rank alone. If all ranks have the same sizes,
// LibTorch's kernel handles all of them at once. Plain tensors among the arguments of a composite op become per-rank
// tensors before that: the op may create values from these alone and write the results of others into them (isclose
// does). If it may write to them (they need no gradient) or returns views, it is recorded rank by rank.
//
// A recorded composite op is one node, which adds up the gradients of an input that it uses twice (rms_norm) before
// others are added to them. A rank alone adds one after the other, so the last bit may differ: another reason to prefer
// LibTorch's kernel.
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
