#pragma once
// The parallel style attached to a parameter: how the op that uses it prepares its input and lays out its output.
//
// Note [Styles on unmodified modules]
// torch::nn modules have no hooks, but each leaf calls one op with its weight: Linear calls aten::linear (see Note [The
// forward of Linear]), Embedding aten::embedding, LayerNorm aten::layer_norm, and an RMSNorm aten::rms_norm. So the
// weight carries the style, and these ops read it, above autograd, before they run (see Note [Tensors with a note]). A
// weight that two modules share, such as a tied vocabulary, has a style per op. Copies of the weight keep the style:
// clone() and to(dtype) pass it on, and optimizers do not touch it.

#include <optional>

#include <ATen/core/Tensor.h>

#include "intarsia/core/mesh.h"
#include "intarsia/core/placement.h"

namespace intarsia {

// How an op prepares its input and leaves its output: placements on a mesh of one axis.
struct OpStyle {
  DeviceMesh mesh;
  Placement input;                   // the layout of a plain input
  std::optional<Placement> desired;  // the layout in which the op gets it
  std::optional<Placement> output;   // the layout of the result; none: as the op returns it
  bool use_local_output;             // return the result as a plain tensor of this rank

  // Converts a plain or distributed tensor to the desired layout. `features`: the global extent of the last dim, if
  // known.
  at::Tensor prepare(const at::Tensor& tensor, std::optional<int64_t> features = std::nullopt) const;
  at::Tensor finish(const at::Tensor& tensor) const;
};

enum class StyledOp { linear, embedding, norm };

// Writes the style on a distributed parameter.
void set_op_style(const at::Tensor& parameter, StyledOp op, const OpStyle& style);

// The style on a tensor; null if there is none.
const OpStyle* op_style_of(const at::Tensor& parameter, StyledOp op);

}  // namespace intarsia
