// An LSTM layer of oneDNN, which LibTorch uses for floats. Samples are independent, so every rank runs its own.

#include <ATen/ATen.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Arguments: input [steps, batch, features], four weights, two states [batch, hidden]; the backward op also has the
// results, with the layouts of input and states, and their gradients.
constexpr size_t kInput = 0, kWeights = 1, kStates = 5, kTensors = 7, kResults = 7, kBackwardTensors = 13;
constexpr size_t kBiases = 3;  // among the weights
constexpr int64_t kBatchOfInput = 1, kBatchOfState = 0;

// `placement` on the axes that shard the batch of the input, Replicate on all others.
const Layout* on_batch_axes(const Layout& input, const Placement& placement) {
  Placements placements;
  for (auto& now : input.placements())
    placements.push_back(now == Placement(Shard(kBatchOfInput)) ? placement : Placement(Replicate()));
  return input.with(placements);
}

struct LayerLayouts {
  const Layout *input, *state, *weight, *weight_gradient;
  explicit LayerLayouts(const Layout& given)
      : input(on_batch_axes(given, Shard(kBatchOfInput))),
        state(on_batch_axes(given, Shard(kBatchOfState))),
        weight(Layout::replicated(given.mesh())),
        weight_gradient(on_batch_axes(given, Partial())) {}

  const Layout* of(size_t arg) const {
    if (arg >= kWeights && arg < kStates) return weight;
    // results and gradients: output, state, state
    bool is_state = arg >= kStates && (arg < kResults || (arg - kResults) % 3 != 0);
    return is_state ? state : input;
  }
};

at::Tensor wrapped(Shards shards, const Layout* layout, at::IntArrayRef sizes) {
  auto dtype = shards.empty() ? c10::scalarTypeToTypeMeta(at::kFloat) : shards[0].dtype();
  return wrap(std::move(shards), layout, sizes, c10::contiguous_strides(sizes), dtype);
}

// Brings the first tensors to their layouts, and returns the arguments of a rank. Undefined tensors stay undefined.
struct LocalArguments {
  Stack given;
  std::vector<std::pair<size_t, at::Tensor>> moved;

  LocalArguments(const Stack& stack, const LayerLayouts& layouts, size_t tensors) : given(stack) {
    for (size_t arg = 0; arg < tensors; ++arg) {
      auto tensor = stack[arg].isTensor() ? stack[arg].toTensor() : at::Tensor();
      if (is_dtensor(tensor)) moved.emplace_back(arg, brought_to(tensor, layouts.of(arg)));
    }
  }
  Stack at(size_t slot) const {
    auto local = given;
    for (auto& [arg, tensor] : moved) local[arg] = body_of(tensor).shards()[slot].contiguous();
    return local;
  }
};

// The result of each rank's call. A rank without samples, or without data, runs nothing, and `none` gives its results.
template <class None>
std::vector<Shards> run_on_samples(const c10::OperatorHandle& op, const LocalArguments& arguments, size_t slots,
                                   size_t results, None none) {
  std::vector<Shards> all(results);
  for (size_t slot = 0; slot < slots; ++slot) {
    auto local = arguments.at(slot);
    auto mine = local[kInput].toTensor();
    if (mine.numel() == 0 || mine.is_meta()) {
      local = none(local);
    } else {
      op.callBoxed(local);
    }
    for (size_t i = 0; i < results; ++i) all[i].push_back(local[i].toTensor());
  }
  return all;
}

// The last result is the op's own workspace, of any size on each rank, for the backward op only.
at::Tensor own_memory_of_ranks(Shards bytes, const Layout* layout) {
  auto sizes = bytes.empty() ? std::vector<int64_t>{0} : bytes[0].sizes().vec();
  return wrapped(std::move(bytes), layout, sizes);
}

void run_layer(const c10::OperatorHandle& op, Stack& stack) {
  auto input = stack[kInput].toTensor(), state = stack[kStates].toTensor();
  LayerLayouts layouts(layout_of(input));
  LocalArguments arguments(stack, layouts, kTensors);
  auto hidden = state.size(-1);
  auto none = [&](const Stack& local) {
    auto mine = local[kInput].toTensor();
    auto last = at::empty({mine.size(1), hidden}, mine.options());
    return Stack{at::empty({mine.size(0), mine.size(1), hidden}, mine.options()), last, at::empty_like(last),
                 at::empty({0}, mine.options().dtype(at::kByte))};
  };
  auto results = run_on_samples(op, arguments, layouts.input->mesh().slots().size(), 4, none);
  std::vector<int64_t> sizes = {input.size(0), input.size(1), hidden};
  stack = {wrapped(results[0], layouts.input, sizes), wrapped(results[1], layouts.state, state.sizes()),
           wrapped(results[2], layouts.state, state.sizes()), own_memory_of_ranks(results[3], layouts.weight)};
}

void run_layer_backward(const c10::OperatorHandle& op, Stack& stack) {
  auto input = stack[kInput].toTensor();
  LayerLayouts layouts(layout_of(input));
  LocalArguments arguments(stack, layouts, kBackwardTensors);
  auto memory = stack.back().toTensor();
  arguments.moved.emplace_back(stack.size() - 1, memory);
  // A layer without biases gets zero weights in their place, and returns gradients of biases that it does not have.
  auto gradient_sizes = [](const at::Tensor& tensor, size_t arg) {
    bool bias = arg >= kBiases && arg < kStates;
    return bias ? tensor.sizes().slice(0, 1) : tensor.sizes();
  };
  auto none = [&](const Stack& local) {
    Stack zeros;
    for (size_t arg = 0; arg < kTensors; ++arg) {
      auto tensor = local[arg].toTensor();
      zeros.emplace_back(at::zeros(gradient_sizes(tensor, arg), tensor.options()));
    }
    return zeros;
  };
  auto results = run_on_samples(op, arguments, layouts.input->mesh().slots().size(), kTensors, none);
  Stack gradients;
  for (size_t arg = 0; arg < kTensors; ++arg) {
    bool weight = arg >= kWeights && arg < kStates;
    auto* layout = weight ? layouts.weight_gradient : layouts.of(arg);
    gradients.emplace_back(wrapped(results[arg], layout, gradient_sizes(stack[arg].toTensor(), arg)));
  }
  stack = std::move(gradients);
}

Planner on_one_mesh(void (*run)(const c10::OperatorHandle&, Stack&), const c10::OperatorHandle& op) {
  return [=](const CutCall& c) -> Lowering {
    if (!c.is_distributed(kInput) || !c.is_distributed(kStates) || c.input(kInput).dim() != 3 || !c.on_one_mesh())
      return {};
    return [=](Stack& stack) { run(op, stack); };
  };
}

}  // namespace

void add_recurrent_layer(RuleTable& t) {
  auto handle = [](const char* op) { return c10::Dispatcher::singleton().findSchemaOrThrow(op, ""); };
  t.lower("aten::mkldnn_rnn_layer", on_one_mesh(run_layer, handle("aten::mkldnn_rnn_layer")));
  t.lower("aten::mkldnn_rnn_layer_backward",
          on_one_mesh(run_layer_backward, handle("aten::mkldnn_rnn_layer_backward")));
}

}  // namespace intarsia
