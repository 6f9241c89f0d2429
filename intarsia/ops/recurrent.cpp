// Recurrent layers and cells: LibTorch's kernels, with distributed initial states.

#include <ATen/ATen.h>

#include "intarsia/dispatch/factory_scope.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// Modules start recurrent layers and cells from plain zeros: those get the layout of the input's batch.
at::Tensor start_state(const at::Tensor& state, const at::Tensor& input, int64_t batch, int64_t own) {
  if (is_dtensor(state) || !is_dtensor(input) || state.requires_grad() || at::any(state).item<bool>()) return state;
  Placements placements(mesh_of(input).ndim(), Replicate());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (batch >= 0 && placements_of(input)[axis] == Placement(Shard(batch)) && state.dim() == own + 2)
      placements[axis] = Shard(own);
  }
  return distribute_tensor(state, mesh_of(input), placements, std::nullopt);
}

// op(input, states, ...) or op(rows, batch sizes, states, ...): makes the states distributed, then runs LibTorch's
// kernel.
void recurrent(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto* args = stack->data() + stack->size() - op.schema().arguments().size();
  auto batch_first = op.schema().argumentIndexWithName("batch_first");
  bool packed = op.schema().argumentIndexWithName("batch_sizes").has_value();
  auto input = args[0].toTensor();
  auto own = batch_first || packed ? 1 : 0, batch = batch_first && !args[*batch_first].toBool() ? 1 : 0;
  if (packed) batch = -1;  // samples and steps are in one dim
  auto& given = args[packed ? 2 : 1];
  if (given.isTensorList()) {
    c10::List<at::Tensor> states;
    for (const at::Tensor& state : given.toTensorList()) states.push_back(start_state(state, input, batch, own));
    given = states;
  } else {
    given = start_state(given.toTensor(), input, batch, own);
  }
  run_composite(op, stack);
}

}  // namespace

void add_recurrent(RuleTable& t) {
  for (auto op : {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input",
                  "aten::lstm.data", "aten::gru.data", "aten::rnn_tanh.data", "aten::rnn_relu.data", "aten::lstm_cell",
                  "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"}) {
    t.composite_boxed<&recurrent>(op);
  }
}

}  // namespace intarsia
