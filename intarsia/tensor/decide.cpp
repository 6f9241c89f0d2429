#include "intarsia/tensor/decide.h"

#include <set>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/engine.h>

#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/trace.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/slot_errors.h"

namespace intarsia {
namespace {

// A tensor with the form of another and no data; or a tiny one with data, for ops that need some. Zero is a place in
// every tensor, but nothing to divide by.
enum class StandIn { empty, zero, one };

at::Tensor stand_in(const at::Tensor& tensor, StandIn kind) {
  if (!tensor.defined() || (!is_dtensor(tensor) && tensor.dim() == 0)) return tensor;
  if (kind == StandIn::empty) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }
  return at::full(std::vector<int64_t>(tensor.dim(), 1), kind == StandIn::one ? 1 : 0, tensor.options().device(at::kCPU));
}

// The arguments with stand-ins for the tensors.
std::vector<c10::IValue> stand_ins(const Call& call, size_t count, StandIn kind) {
  std::vector<c10::IValue> stack(call.args.begin(), call.args.begin() + count);
  for (auto& value : stack) {
    if (value.isDevice() && kind == StandIn::empty) value = c10::Device(at::kMeta);
  }
  for (size_t i = 0; i < call.operands.size();) {
    auto& operand = call.operands[i];
    auto arg = operand.arg;
    if (arg >= static_cast<int>(count)) break;
    if (operand.index < 0) {
      stack[arg] = operand.tensor.defined() ? c10::IValue(stand_in(operand.tensor, kind)) : call.args[arg];
      ++i;
      continue;
    }
    std::vector<at::Tensor> tensors;
    for (; i < call.operands.size() && call.operands[i].arg == arg; ++i) {
      tensors.push_back(stand_in(call.operands[i].tensor, kind));
    }
    if (call.args[arg].isTensorList()) {
      stack[arg] = tensors;
    } else {
      c10::List<std::optional<at::Tensor>> optionals;
      for (auto& t : tensors) optionals.push_back(t.defined() ? std::optional(t) : std::nullopt);
      stack[arg] = optionals;
    }
  }
  return stack;
}

bool read_forms(const std::vector<c10::IValue>& stack, std::vector<TensorForm>& outputs) {
  for (auto& value : stack) {
    if (value.isTensor()) {
      outputs.push_back(form_of(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) outputs.push_back(form_of(tensor));
    } else if (!value.isNone()) {
      return false;
    } else {
      outputs.emplace_back();
    }
  }
  return true;
}

// The rule knows the shapes, and the op itself tells the dtypes from tensors of one element.
bool infer_from_rule(const Call& call, const std::vector<TensorForm>& inputs, std::vector<TensorForm>& outputs) {
  auto& op = call.op;
  if (!op.rule || !op.rule->shapes) return false;
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), inputs, outputs};
  auto shapes = op.rule->shapes(seen);
  if (shapes.empty()) return false;
  if (op.rule->dtypes) {
    for (auto dtype : op.rule->dtypes(seen)) {
      outputs.emplace_back().dtype = dtype;
      outputs.back().defined = dtype != c10::ScalarType::Undefined;
    }
  } else {
    auto stack = stand_ins(call, op.functional_args, op.rule->family == "pointwise" ? StandIn::one : StandIn::zero);
    op.functional.callBoxed(stack);
    if (!read_forms(stack, outputs)) return false;
  }
  auto told = op.rule->strides ? op.rule->strides(seen) : std::vector<std::vector<int64_t>>();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined) continue;
    auto dense = c10::contiguous_strides(shapes[i]);
    std::vector<int64_t> strides(dense.begin(), dense.end());
    if (!told.empty()) strides = told[i];
    for (auto& input : inputs) {
      if (!told.empty() || !op.rule->aligned || !input.defined || at::IntArrayRef(input.sizes) != at::IntArrayRef(shapes[i])) continue;
      strides = at::infer_dense_strides(shapes[i], input.strides);
      break;
    }
    outputs[i].sizes.assign(shapes[i].begin(), shapes[i].end());
    outputs[i].strides.assign(strides.begin(), strides.end());
  }
  return true;
}

// Runs the plain op on stand-ins: its own checks speak for bad input, on every rank, before anything is sent.
// False if the form of the results depends on data.
bool infer_outputs(const Call& call, const std::vector<TensorForm>& inputs, std::vector<TensorForm>& outputs) {
  auto& returns = call.op.handle.schema().returns();
  auto is_number = [](auto& result) { return result.type()->kind() == c10::TypeKind::NumberType; };
  if (std::any_of(returns.begin(), returns.end(), is_number)) return false;  // item(): the value is the result
  auto stack = stand_ins(call, call.op.functional_args, StandIn::empty);
  auto& handle = call.op.is_out ? call.op.functional : call.op.handle;
  at::AutoDispatchBelowADInplaceOrView guard;
  try {
    handle.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return infer_from_rule(call, inputs, outputs);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {
    // In Python, some ops are told their shapes by Python code, which raises what it likes where it cannot.
    if (is_interrupt(std::current_exception())) throw;
    return infer_from_rule(call, inputs, outputs);
  }
  return read_forms(stack, outputs);
}

std::string describe(const Call& call) {
  std::string text;
  for (auto& operand : call.operands) {
    if (!operand.tensor.defined()) continue;
    if (!text.empty()) text += ", ";
    text += c10::str(operand.tensor.sizes()) + " ";
    text += operand.meta ? str(operand.meta->layout->placements()) : "plain";
  }
  return text + " on " + call.mesh.text();
}

// An op without a rule is right but slow on whole tensors: said once per op, and always in the trace.
void announce_fallback(const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_strict(), "[", call.op.name, "] has no sharding rule (", describe(call),
                              "), and strict mode is on. Register a rule, or redistribute its inputs to Replicate.");
  if (recording()) record(FallbackEvent{call.op.name, describe(call)});
  static auto* mutex = new std::mutex;
  static auto* known = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  if (!known->insert(call.op.name).second) return;
  TORCH_WARN("[", call.op.name, "] has no sharding rule and runs on whole tensors: ", describe(call),
             ". Said once for this op.");
}

bool is_contiguous(const TensorForm& form) {
  auto strides = c10::contiguous_strides(form.sizes);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (form.sizes[d] != 1 && form.strides[d] != strides[d]) return false;
  }
  return true;
}

bool is_written(const Op& op, const Operand& operand) {
  return std::find(op.written.begin(), op.written.end(), operand.arg) != op.written.end();
}

// A window that slides over a tensor shows its elements more than once. The plain op writes to each of these in turn, in an
// order of its own; here they lie apart. (Of expanded tensors the plain op takes care itself.)
void check_overlap(const Call& call, const TensorForm& form) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims;
  for (int64_t d = 0; d < form.dim(); ++d) {
    if (form.sizes[d] == 0) return;
    if (form.sizes[d] > 1 && form.strides[d] > 0) dims.emplace_back(form.strides[d], form.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (auto [stride, size] : dims) {
    TORCH_CHECK(stride > reach, "[", call.op.name, "] unsupported operation: more than one element of the written-to tensor ",
                "refers to a single memory location. Please clone() the tensor before performing the operation.");
    reach += (size - 1) * stride;
  }
}

void choose_layouts(const Call& call, Decision& decision) {
  auto& op = call.op;
  auto* rule = decision.known_outputs ? op.rule : nullptr;
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision.inputs, decision.outputs};
  Question question{rule, seen, call.mesh, {}, -1};
  std::vector<int> written;
  for (size_t i = 0; i < decision.inputs.size(); ++i) {
    auto& operand = call.operands[i];
    question.now.push_back(operand.meta ? operand.meta->layout : nullptr);
    if (!op.is_out && is_written(op, operand) && operand.meta) {
      check_overlap(call, decision.inputs[i]);
      written.push_back(i);
    }
  }
  if (written.size() == 1 && op.written.size() == 1 && op.returns_arg.size() == 1) question.written = written[0];
  auto choice = choose(question);
  if (!choice) {
    question.written = -1;
    choice = choose(question);
  }
  decision.in = choice->in;
  decision.out = choice->out;
  for (auto i : written) {
    // A tensor that cannot keep its layout while it is written is written as a copy and cut again afterwards. What is
    // pending in it would be lost. Random numbers are drawn once and copied to all.
    if (decision.in[i] == question.now[i] && !op.is_random) continue;
    decision.unsettled = decision.unsettled || question.now[i]->has_partial();
    decision.copied.push_back(i);
  }
}

// Whether nobody else sees the tensor's body: no other handle, no view.
bool is_alone(const at::Tensor& tensor) {
  auto meta = shared_meta_of(tensor);
  return meta.use_count() == 2 && &meta->memory() == meta.get();
}

// Whether the reductions that a layout leaves pending are over axes of one rank.
bool pends_over_nobody(const Layout& layout) {
  for (int64_t axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (is_partial(layout.placements()[axis]) && layout.mesh().size(axis) > 1) return false;
  }
  return true;
}

}  // namespace

void settle_written(const Call& call) {
  // Autograd's formulas write into tensors that they have just made (counts of what was scattered, say).
  bool inside_formula = torch::autograd::get_current_graph_task_id() >= 0;
  for (auto& operand : call.operands) {
    if (!is_written(call.op, operand) || !operand.meta || !operand.meta->layout->has_partial()) continue;
    if (inside_formula && pends_over_nobody(*operand.meta->layout)) {  // then it is its own sum, for all who see it
      operand.meta->layout = Layout::get(call.mesh, settled(operand.meta->layout->placements()));
      continue;
    }
    TORCH_CHECK(inside_formula && is_alone(operand.tensor), "[", call.op.name, "] ", describe(call),
                ": in-place operations that require placement changes are not supported. ",
                "Use the op that returns a new tensor, or redistribute first.");
    at::NoGradGuard below_autograd;
    auto value = redistribute(operand.tensor.detach(), settled(placements_of(operand.tensor)));
    operand.tensor.unsafeGetTensorImpl()->set_backend_meta(shared_meta_of(value));
  }
}

std::shared_ptr<const Decision> decide(const Call& call) {
  auto decision = std::make_shared<Decision>();
  auto& op = call.op;
  for (auto& operand : call.operands) {
    if (operand.arg < static_cast<int>(op.functional_args)) decision->inputs.push_back(form_of(operand.tensor));
  }
  decision->known_outputs = infer_outputs(call, decision->inputs, decision->outputs);
  if (!decision->known_outputs) decision->outputs.clear();
  decision->fallback = (!op.rule || !decision->known_outputs) && !op.is_random;
  if (decision->fallback && !(op.rule && op.rule->family == "whole")) announce_fallback(call);
  for (auto& form : decision->outputs) decision->contiguous.push_back(is_contiguous(form));
  choose_layouts(call, *decision);
  for (size_t i = 0; i < decision->in.size(); ++i) {
    auto& form = decision->inputs[i];
    auto& steps = decision->plans.emplace_back();
    if (!decision->in[i] || decision->in[i] == call.operands[i].meta->layout) continue;
    steps = plan(call.operands[i].meta->layout, decision->in[i], form.sizes, c10::elementSize(form.dtype));
    decision->any_moves = true;
  }
  if (decision->known_outputs && !op.size_args.empty()) {
    for (auto& slot : call.mesh.slots()) {
      auto shape = local_shape(*decision->out[0], decision->outputs[0].sizes, slot.coordinate);
      decision->local_shape.assign(shape.begin(), shape.end());
      auto& sizes = decision->local_sizes.emplace_back();
      for (auto arg : op.size_args) sizes.push_back(local_size(op.functional.schema().arguments()[arg], shape));
    }
  }
  if (decision->known_outputs && call.mesh.slots().size() == 1) {
    for (size_t i = 0; i < decision->outputs.size(); ++i) {
      auto& form = decision->outputs[i];
      auto& strides = decision->local_strides.emplace_back();
      if (!form.defined || decision->contiguous[i]) continue;
      auto dense = at::infer_dense_strides(local_shape(*decision->out[i], form.sizes, call.mesh.slots()[0].coordinate), form.strides);
      strides.assign(dense.begin(), dense.end());
    }
  }
  for (size_t i = 0; i < decision->in.size(); ++i) {
    bool number = !decision->in[i] && decision->inputs[i].defined;
    decision->seen_in.push_back(number ? Layout::replicated(call.mesh) : decision->in[i]);
  }
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision->inputs, decision->outputs};
  if (decision->known_outputs && op.rule) decision->agreeing = agreeing_axes(*op.rule, seen, decision->seen_in, call.mesh);
  bool is_view = !op.views_arg.empty() && op.views_arg[0] >= 0;
  bool needs_local = op.rule && op.rule->local && !op.rule->local_only_if_strided;
  if (needs_local && op.rule->plain_does && decision->known_outputs && call.mesh.slots().size() == 1) {
    needs_local = !op.rule->plain_does(seen, decision->seen_in, decision->out, call.mesh.slots()[0]);
  }
  decision->direct = call.mesh.slots().size() == 1 && decision->copied.empty() && !(is_view && decision->any_moves) &&
                     decision->known_outputs && !op.is_random && !op.is_out && !needs_local &&
                     decision->agreeing.empty();
  return decision;
}

}  // namespace intarsia
