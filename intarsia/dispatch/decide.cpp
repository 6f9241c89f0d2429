#include "intarsia/dispatch/decide.h"

#include <set>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/comm/mix_hash.h"
#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/errors.h"
#include "intarsia/dispatch/moves.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/propagate/guide.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

std::string describe(const Call& call) {
  std::string text;
  for (auto& operand : call.operands) {
    if (!operand.tensor.defined()) continue;
    if (!text.empty()) text += ", ";
    text += c10::str(operand.tensor.sizes()) + " ";
    text += operand.body ? str(operand.body->layout->placements()) : "plain";
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

// False if the layouts are to be as the guide advises, and it gives no advice that can be followed.
bool choose_layouts(const Call& call, Decision& decision, bool only_as_advised) {
  auto& op = call.op;
  auto* rule = decision.known_outputs ? op.rule : nullptr;
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision.inputs, decision.outputs};
  Question question{rule, seen, call.mesh, {}, -1};
  std::vector<int> written;
  for (size_t i = 0; i < decision.inputs.size(); ++i) {
    auto& operand = call.operands[i];
    question.now.push_back(operand.body ? operand.body->layout : nullptr);
    if (!op.is_out && is_written(op, operand) && operand.body) {
      check_overlap(call, decision.inputs[i]);
      written.push_back(i);
    }
  }
  if (written.size() == 1 && op.written.size() == 1 && op.returns_arg.size() == 1) question.written = written[0];
  auto choice = only_as_advised ? choose_as_advised(question) : choose(question);
  if (!choice && only_as_advised) return false;
  if (!choice) {
    question.written = -1;
    choice = choose(question);
  }
  decision.in = choice->in;
  decision.out = choice->out;
  decision.joint = choice->along;
  for (auto i : written) {
    // A tensor that cannot keep its layout while it is written is written as a copy and cut again afterwards. What is
    // pending in it would be lost. Random numbers are drawn once and copied to all.
    if (decision.in[i] == question.now[i] && !op.is_random) continue;
    decision.unsettled = decision.unsettled || question.now[i]->has_partial();
    decision.copied.push_back(i);
  }
  return true;
}

// Under the drop-in all errors about sizes and dims are of one kind, as those of PyTorch's DTensor are.
std::optional<std::vector<TensorForm>> forms_or_error(const FormQuestion& question, const Op& op) {
  try {
    return forms_of_results(question);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const c10::Error& error) {
    if (!is_guided()) throw;
    TORCH_CHECK(false, error.what_without_backtrace(), "\n\nSharding propagation failed for ", op.name);
  }
}

// mul_ and its like: one tensor is written, pending before and after, and all else are numbers.
bool scales_pending(const Call& call, const Decision& decision) {
  if (call.op.written.size() != 1 || call.op.is_out || !decision.copied.empty()) return false;
  bool pending = false, numbers = false;
  for (auto& operand : call.operands) {
    if (!operand.tensor.defined()) continue;
    if (is_written(call.op, operand)) {
      pending = operand.body && operand.body->layout->has_partial();
    } else if (operand.tensor.numel() == 1) {
      numbers = true;
    } else {
      return false;
    }
  }
  return pending && numbers;
}

}  // namespace

bool has_reduced_target(const Call& call) {
  if (pending_writes() != PendingWrites::settle) return false;
  for (auto& operand : call.operands) {
    if (!is_written(call.op, operand) || !operand.body) continue;
    auto& body = *operand.body;
    auto known = &body.memory() == &body ? body.known_settled() : std::nullopt;
    return known && known->layout == body.layout->with(settled(body.layout->placements()));
  }
  return false;
}

void settle_written(const Call& call) {
  // Autograd's formulas write into tensors that they have just made (counts of what was scattered, say).
  bool inside_formula = torch::autograd::get_current_graph_task_id() >= 0;
  for (auto& operand : call.operands) {
    if (!is_written(call.op, operand) || !operand.body || !operand.body->layout->has_partial()) continue;
    TORCH_CHECK(inside_formula || pending_writes() == PendingWrites::settle, "[", call.op.name, "] ", describe(call),
                ": in-place operations that require placement changes are not supported. ",
                "Use the op that returns a new tensor, or redistribute first.");
    settle_for(call.op.name.c_str(), operand.tensor);
  }
}

// The same in every process, and for an op and its in-place form. What comes of it follows from the tensors that go in. Where nothing
// travels between processes nobody asks.
static uint64_t hash_of_call(const Call& call) {
  if (call.mesh.size() == 1 || call.mesh.slots().size() != 1) return 0;
  auto hash = call.op.hash;
  for (size_t i = 0; i < call.op.functional_args; ++i) {
    auto& arg = call.args[i];
    if (call.op.kinds[i] != ArgKind::value) continue;
    if (arg.isInt()) hash = mix_hash(hash, arg.toInt());
    if (!arg.isIntList()) continue;
    for (auto number : arg.toIntVector()) hash = mix_hash(hash, number);
  }
  return hash;
}

std::shared_ptr<const Decision> decide(const Call& call, bool only_as_advised) {
  auto decision = std::make_shared<Decision>();
  auto& op = call.op;
  for (auto& operand : call.operands) {
    if (operand.arg < static_cast<int>(op.functional_args)) decision->inputs.push_back(form_of(operand.tensor));
  }
  auto& plain = op.is_out ? op.functional : op.handle;
  auto forms = forms_or_error({plain, op.functional, op.rule, call.args.slice(0, op.functional_args), decision->inputs}, op);
  decision->known_outputs = forms.has_value();
  if (forms) decision->outputs = std::move(*forms);
  if (only_as_advised && (!op.rule || !forms)) return nullptr;
  decision->fallback = (!op.rule || !decision->known_outputs) && !op.is_random;
  if (decision->fallback && !(op.rule && op.rule->asks_for_all)) announce_fallback(call);
  for (auto& form : decision->outputs) decision->contiguous.push_back(is_contiguous(form));
  if (!choose_layouts(call, *decision, only_as_advised)) return nullptr;
  for (size_t i = 0; i < decision->in.size(); ++i) {
    auto& form = decision->inputs[i];
    auto& steps = decision->plans.emplace_back();
    if (!decision->in[i] || decision->in[i] == call.operands[i].body->layout) continue;
    steps = plan(call.operands[i].body->layout, decision->in[i], form.sizes, c10::elementSize(form.dtype));
    decision->any_moves = true;
  }
  if (decision->known_outputs && !op.size_args.empty()) {
    // A gradient that nobody asks for has no form; the one that comes in has the same.
    bool asked = decision->outputs[0].defined;
    auto& form = asked ? decision->outputs[0] : decision->inputs[0];
    auto* layout = asked ? decision->out[0] : decision->in[0];
    for (auto& slot : call.mesh.slots()) {
      auto shape = local_shape(*layout, form.sizes, slot.coordinate);
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
  bool needs_local = op.rule && op.rule->local.run && !op.rule->local.only_if_strided;
  if (needs_local && op.rule->local.plain_does && decision->known_outputs && call.mesh.slots().size() == 1) {
    needs_local = !op.rule->local.plain_does(seen, decision->seen_in, decision->out, call.mesh.slots()[0]);
  }
  decision->scales_pending = scales_pending(call, *decision);
  decision->direct = !decision->scales_pending && call.mesh.slots().size() == 1 && decision->copied.empty() &&
      !(is_view && decision->any_moves) &&
                     decision->known_outputs && !op.is_random && !op.is_out && !needs_local &&
                     decision->agreeing.empty() && !decision->joint;
  decision->what = hash_of_call(call);
  return decision;
}

Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args) {
  if (!op.planner) return {};
  std::vector<const Layout*> layouts;
  for_each_tensor(op, args, [&](const at::Tensor& tensor, int, int) {
    layouts.push_back(is_dtensor(tensor) ? body_of(tensor).layout : nullptr);
  });
  return way_for(op, args, layouts);
}

Way way_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts) {
  if (!op.planner) return {};
  std::vector<c10::IValue> without_tensors(args.begin(), args.end());
  std::vector<TensorForm> inputs;
  for_each_tensor(op, args, [&](const at::Tensor& tensor, int arg, int) {
    inputs.push_back(form_of(tensor));
    without_tensors[arg] = c10::IValue();
  });
  const std::vector<TensorForm> unknown;
  OpCall call{op.handle.schema(), without_tensors, inputs, unknown};
  return (*op.planner)({call, layouts});
}

}  // namespace intarsia
