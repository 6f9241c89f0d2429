#include "intarsia/conv/spread.h"

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/tensor/call.h"
#include "intarsia/tensor/meta.h"
#include "intarsia/tensor/slot_errors.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_tensor_argument(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

// The tensors among the arguments, undefined ones too. False if some are plain, or meshes differ.
bool read_tensors(const Op& op, const Stack& stack, std::vector<at::Tensor>& tensors) {
  const DeviceMesh* mesh = nullptr;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (op.kinds[i] != ArgKind::tensor) continue;
    auto& tensor = tensors.emplace_back(stack[i].isTensor() ? stack[i].toTensor() : at::Tensor());
    if (!tensor.defined()) continue;
    if (!is_dtensor(tensor)) return false;
    auto& own = meta_of(tensor).layout->mesh();
    if (mesh && *mesh != own) return false;
    mesh = &own;
  }
  return mesh != nullptr;
}

// The image is dims `first` and up of every tensor of as many dims as the first one.
bool cuts_image(const Layout* layout, int64_t first) {
  for (auto& placement : layout->placements()) {
    if (cut_dim(placement) >= first) return true;
  }
  return false;
}

// Whether, as the plain ops see it, the channels are last in memory.
at::MemoryFormat format_of(const TensorForm& form) {
  if (form.dim() == 4 && c10::is_channels_last_strides_2d(form.sizes, form.strides)) return at::MemoryFormat::ChannelsLast;
  if (form.dim() == 5 && c10::is_channels_last_strides_3d(form.sizes, form.strides)) return at::MemoryFormat::ChannelsLast3d;
  return at::MemoryFormat::Contiguous;
}

// The plain op on tensors without data: its own checks speak for bad input, on every rank, before anything is sent.
std::vector<TensorForm> forms_of(const SpreadOp& op, const c10::OperatorHandle& handle, const OpCall& call) {
  if (op.forms) return op.forms(call);
  Stack stack(call.args.begin(), call.args.end());
  for (auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    auto& tensor = value.toTensor();
    value = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }
  handle.callBoxed(stack);
  std::vector<TensorForm> forms;
  for (auto& value : stack) forms.push_back(form_of(value.isTensor() ? value.toTensor() : at::Tensor()));
  return forms;
}

// Decides one call; see Note [Kept choices]. Without outputs, the call is left to the ordinary rules.
std::shared_ptr<const Decision> decide(const SpreadOp& op, const c10::OperatorHandle& handle, const Stack& stack,
                                       const std::vector<at::Tensor>& tensors) {
  auto decision = std::make_shared<Decision>();
  auto ndim = tensors[0].dim();
  int64_t first = op.image_dims == SpreadOp::kAllDims ? 0 : op.image_dims ? ndim - op.image_dims : 2;
  bool cut = op.forms != nullptr;
  for (auto& tensor : tensors) {
    if (tensor.defined() && tensor.dim() == ndim) cut = cut || cuts_image(meta_of(tensor).layout, first);
  }
  if (!cut) return decision;

  std::vector<TensorForm> outputs;
  for (auto& tensor : tensors) decision->inputs.push_back(form_of(tensor));
  OpCall call{handle.schema(), stack, decision->inputs, outputs};
  outputs = forms_of(op, handle, call);
  for (auto& form : outputs) {
    if (op.keeps_format && form.defined) form = dense_form(form.sizes, form.dtype, format_of(decision->inputs[0]));
  }
  Question question{&op.rule, call, mesh_of(tensors[0]), {}, -1};
  for (auto& tensor : tensors) question.now.push_back(tensor.defined() ? meta_of(tensor).layout : nullptr);
  auto choice = choose(question);
  if (!choice || !(op.forms || cuts_image(choice->in[0], first))) return decision;
  decision->outputs = outputs;
  decision->in = choice->in;
  decision->out = choice->out;
  decision->agreeing = agreeing_axes(op.rule, call, decision->in, question.mesh);
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& form = decision->inputs[i];
    decision->plans.push_back(form.defined ? plan(question.now[i], choice->in[i], form.sizes, c10::elementSize(form.dtype)) : Plan());
  }
  return decision;
}

// Note [Kept choices]
// As with all ops, the same call on tensors of the same form and layout is decided once. What steers the decision is what
// steers it elsewhere (tensor/call_key.h); numbers with a fraction do not.
class SpreadKernel {
 public:
  explicit SpreadKernel(SpreadOp op)
      : op_(std::move(op)), handle_(c10::Dispatcher::singleton().findSchemaOrThrow(op_.name.c_str(), "")) {}

  bool operator()(Stack& stack) {
    std::call_once(read_, [&] { schema_ = std::make_unique<Op>(handle_); });  // it looks up rules, so not before all are made
    std::vector<at::Tensor> tensors;
    if (!read_tensors(*schema_, stack, tensors)) return false;
    CallKey key;
    bool kept = make_key(*schema_, stack, key);
    auto decision = kept ? choices_.find(key) : nullptr;
    if (!decision) {
      decision = decide(op_, handle_, stack, tensors);
      if (kept) choices_.insert(key, decision);
    }
    if (decision->outputs.empty()) return false;
    run(*decision, stack, tensors);
    return true;
  }

 private:
  void run(const Decision& decision, Stack& stack, const std::vector<at::Tensor>& tensors) const {
    OpCall call{handle_.schema(), stack, decision.inputs, decision.outputs};
    Spread run{call, mesh_of(tensors[0]), decision.in, decision.out, {}, {}, decision.agreeing};
    CauseScope cause(op_.name.c_str(), true);
    for (size_t i = 0; i < tensors.size(); ++i) {
      run.inputs.push_back(tensors[i].defined() ? shards_by(tensors[i], decision.in[i], decision.plans[i]) : Shards());
    }
    run.outputs.resize(decision.outputs.size());
    op_.run(run);
    Stack results;
    for (size_t i = 0; i < decision.outputs.size(); ++i) {
      auto& form = decision.outputs[i];
      results.emplace_back(form.defined ? wrap(std::move(run.outputs[i]), decision.out[i], form.sizes, form.strides,
                                               c10::scalarTypeToTypeMeta(form.dtype))
                                        : at::Tensor());
    }
    stack = std::move(results);
  }

  SpreadOp op_;
  c10::OperatorHandle handle_;
  std::once_flag read_;
  std::unique_ptr<Op> schema_;
  DecisionCache choices_;
};

}  // namespace

std::vector<int64_t> Spread::output_shape(size_t i, size_t slot) const {
  auto shape = local_shape(*out[i], call.outputs[i].sizes, mesh.slots()[slot].coordinate);
  return {shape.begin(), shape.end()};
}

Decomposition spread(SpreadOp op) {
  return [kernel = std::make_shared<SpreadKernel>(std::move(op))](Stack& stack) { return (*kernel)(stack); };
}

void plain_on_each_rank(Spread& run) {
  auto& schema = run.call.schema;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), schema.overload_name().c_str());
  SlotErrors errors;
  for (size_t slot = 0; slot < run.slots(); ++slot) {
    Stack stack(run.call.args.begin(), run.call.args.end());
    size_t tensor = 0;
    bool empty = false;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (!is_tensor_argument(schema.arguments()[i])) continue;
      stack[i] = run.input(tensor++, slot);
      empty = empty || (stack[i].toTensor().defined() && stack[i].toTensor().numel() == 0);
    }
    if (!empty) empty = !errors.attempt(slot, [&] { op.callBoxed(stack); });
    for (size_t r = 0; r < run.call.outputs.size(); ++r) {
      auto& form = run.call.outputs[r];
      auto zeros = [&] { return at::zeros(run.output_shape(r, slot), run.input(0, slot).options().dtype(form.dtype)); };
      run.outputs[r].push_back(!form.defined ? at::Tensor() : empty ? zeros() : stack[r].toTensor());
    }
  }
  errors.raise(schema.name(), run.mesh, run.agreeing);
}

void ask_plain(const OpCall& call) {
  Stack stack(call.args.begin(), call.args.end());
  for (auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    auto& tensor = value.toTensor();
    value = at::zeros({}, tensor.options().device(at::kCPU)).expand(tensor.sizes());
  }
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call.schema.name().c_str(), call.schema.overload_name().c_str());
  op.callBoxed(stack);
}

void refuse_as_plain(const OpCall& call) {
  ask_plain(call);
  TORCH_CHECK(false, "[", call.schema.name(), "] these sizes do not fit: ", at::IntArrayRef(call.inputs[0].sizes));
}

TensorForm dense_form(at::IntArrayRef shape, at::ScalarType dtype, at::MemoryFormat format) {
  return form_of(at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype).memory_format(format)));
}

}  // namespace intarsia
