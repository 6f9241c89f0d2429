#include "intarsia/conv/spread.h"

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_tensor_argument(const c10::Argument& argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

// The tensors among the arguments, undefined ones too. False if some are plain, or meshes differ.
bool read_tensors(const c10::FunctionSchema& schema, const Stack& stack, std::vector<at::Tensor>& tensors) {
  const DeviceMesh* mesh = nullptr;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!is_tensor_argument(schema.arguments()[i])) continue;
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

bool run_spread(const SpreadOp& op, const c10::OperatorHandle& handle, Stack& stack) {
  std::vector<at::Tensor> tensors;
  if (!read_tensors(handle.schema(), stack, tensors)) return false;
  auto ndim = tensors[0].dim();
  int64_t first = op.image_dims == SpreadOp::kAllDims ? 0 : op.image_dims ? ndim - op.image_dims : 2;
  bool cut = op.forms != nullptr;
  for (auto& tensor : tensors) {
    if (tensor.defined() && tensor.dim() == tensors[0].dim()) cut = cut || cuts_image(meta_of(tensor).layout, first);
  }
  if (!cut) return false;

  std::vector<TensorForm> inputs, outputs;
  for (auto& tensor : tensors) inputs.push_back(form_of(tensor));
  OpCall call{handle.schema(), stack, inputs, outputs};
  outputs = forms_of(op, handle, call);
  Question question{&op.rule, call, mesh_of(tensors[0]), {}, -1};
  for (auto& tensor : tensors) question.now.push_back(tensor.defined() ? meta_of(tensor).layout : nullptr);
  auto choice = choose(question);
  if (!choice || !(op.forms || cuts_image(choice->in[0], first))) return false;

  Spread run{call, question.mesh, choice->in, choice->out, {}, {}};
  CauseScope cause(op.name.c_str(), true);
  for (size_t i = 0; i < tensors.size(); ++i) {
    run.inputs.push_back(tensors[i].defined() ? shards_in(tensors[i], choice->in[i]) : Shards());
  }
  run.outputs.resize(outputs.size());
  op.run(run);
  Stack results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto& form = outputs[i];
    results.emplace_back(form.defined ? wrap(run.outputs[i], choice->out[i], form.sizes, form.strides,
                                             c10::scalarTypeToTypeMeta(form.dtype))
                                      : at::Tensor());
  }
  stack = std::move(results);
  return true;
}

}  // namespace

std::vector<int64_t> Spread::output_shape(size_t i, size_t slot) const {
  auto shape = local_shape(*out[i], call.outputs[i].sizes, mesh.slots()[slot].coordinate);
  return {shape.begin(), shape.end()};
}

Decomposition spread(SpreadOp op) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.name.c_str(), "");
  return [op = std::move(op), handle](Stack& stack) { return run_spread(op, handle, stack); };
}

void plain_unless_empty(LocalCall& local) {
  auto first = local.stack[0].toTensor();
  if (first.numel()) {
    auto& schema = local.call.schema;
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), schema.overload_name().c_str());
    return op.callBoxed(local.stack);
  }
  std::vector<c10::IValue> results;
  for (size_t i = 0; i < local.call.outputs.size(); ++i) {
    auto shape = local_shape(*local.out[i], local.call.outputs[i].sizes, local.slot.coordinate);
    results.emplace_back(at::zeros(shape, first.options().dtype(local.call.outputs[i].dtype)));
  }
  local.stack = std::move(results);
}

}  // namespace intarsia
