#pragma once
// Activation checkpointing: recomputes activations in backward instead of keeping them.
//
//   auto y = recompute(block, x);  // like block->forward(x), but intermediate results of the block are not kept

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/nn/module_ref.h"

namespace intarsia {

using RecomputedSegment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Calls the segment and returns its results. Backward calls it a second time, from the generator's state of the first
// call, so that dropout draws the same mask; afterwards the generator is as it was before. Gradients of parameters that
// the segment uses are the same as without it. The segment is kept until then, and so must be what it refers to. Inputs
// and results are plain or distributed.
std::vector<at::Tensor> recompute_segment(const RecomputedSegment& segment, const std::vector<at::Tensor>& inputs);

// The same for the forward of a module, given by its holder or a shared pointer, which takes tensors and returns one.
template <ModuleOwner Holder, class... Tensors>
at::Tensor recompute(const Holder& module, const at::Tensor& first, const Tensors&... others) {
  ModuleRef::address_in(module);  // an error if there is none
  RecomputedSegment segment = [module = Holder(module)](const std::vector<at::Tensor>& inputs) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::vector<at::Tensor>{module->forward(inputs[I]...)};
    }(std::make_index_sequence<1 + sizeof...(Tensors)>());
  };
  return recompute_segment(segment, {first, others...})[0];
}

}  // namespace intarsia
