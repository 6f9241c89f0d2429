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

}  // namespace

void announce_fallback(const Call& call) {
  if (call.op.rule && call.op.rule->asks_for_all) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!is_strict(), "[", call.op.name, "] has no sharding rule (", describe(call),
                              "), and strict mode is on. Register a rule, or redistribute its inputs to Replicate.");
  if (recording()) record(call.mesh.world(), FallbackEvent{call.op.name, describe(call)});
  static auto* mutex = new std::mutex;
  static auto* known = new std::set<std::string>;
  std::lock_guard lock(*mutex);
  if (!known->insert(call.op.name).second) return;
  TORCH_WARN("[", call.op.name, "] has no sharding rule and runs on whole tensors: ", describe(call),
             ". Said once for this op.");
}

namespace {

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

// A window that slides over a tensor shows its elements more than once. The plain op writes to each of these in turn,
// in an unspecified order; here they are separate. (Expanded tensors are rejected by the plain op itself.)
void check_overlap(const Call& call, const TensorForm& form) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> dims;
  for (int64_t d = 0; d < form.dim(); ++d) {
    if (form.sizes[d] == 0) return;
    if (form.sizes[d] > 1 && form.strides[d] > 0) dims.emplace_back(form.strides[d], form.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (auto [stride, size] : dims) {
    TORCH_CHECK(stride > reach, "[", call.op.name,
                "] unsupported operation: more than one element of the written-to tensor ",
                "refers to a single memory location. Please clone() the tensor before performing the operation.");
    reach += (size - 1) * stride;
  }
}

struct Written {
  std::vector<int> operands;  // those that are written in place
  int kept = -1;              // the one that keeps its layout if there is a choice: the only one, which the op returns
};

Written written_operands(const Call& call, const Decision& decision) {
  Written written;
  auto& op = call.op;
  for (size_t i = 0; i < decision.inputs.size(); ++i) {
    if (op.is_out || !is_written(op, call.operands[i]) || !call.operands[i].layout) continue;
    check_overlap(call, decision.inputs[i]);
    written.operands.push_back(i);
  }
  bool returns_it = op.written.size() == 1 && op.returns_arg.size() == 1;
  if (written.operands.size() == 1 && returns_it) written.kept = written.operands[0];
  return written;
}

// Takes the first candidate that is legal. A guide is asked once, whether or not its advice is followed.
Choice route_of(const Call& call, const Decision& decision, const Written& written, bool lowered) {
  auto& op = call.op;
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision.inputs, decision.outputs};
  Question question{decision.known_outputs ? op.rule : nullptr, seen, call.mesh, {}, written.kept, lowered};
  for (size_t i = 0; i < decision.inputs.size(); ++i) question.now.push_back(call.operands[i].layout);
  bool rows_serve = decision.known_outputs && op.rule;
  auto advice = !lowered || rows_serve ? advice_for(question) : std::nullopt;
  question.advice = advice ? &*advice : nullptr;
  auto choice = choose(question);
  if (choice) return *choice;
  question.written = -1;
  return *choose(question);
}

// A tensor that cannot keep its layout while it is written is written as a copy and sharded again afterwards. Its
// pending reduction would be lost. Random numbers are drawn once and copied to all.
void choose_layouts(const Call& call, Decision& decision, bool lowered) {
  auto written = written_operands(call, decision);
  auto choice = route_of(call, decision, written, lowered);
  decision.route = choice.route;
  if (choice.route == Route::lowering) return;
  if (choice.route == Route::fallback && call.op.is_random) decision.route = Route::row;
  decision.in = choice.in;
  decision.out = choice.out;
  for (auto i : written.operands) {
    auto* now = call.operands[i].layout;
    if (decision.in[i] == now && !call.op.is_random) continue;
    decision.unsettled = decision.unsettled || now->has_partial();
    decision.copied.push_back(i);
  }
}

// A guide's programs may expect another text for an error about sizes and dims than the plain op's.
std::optional<std::vector<TensorForm>> forms_or_error(const FormQuestion& question, const Op& op) {
  try {
    return forms_of_results(question);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const c10::Error& error) {
    if (!is_guided()) throw;
    TORCH_CHECK(false, worded_by_guide(op.name, error.what_without_backtrace()));
  }
}

// mul_ and the like: one tensor is written, pending before and after, and all others are numbers.
bool scales_pending(const Call& call, const Decision& decision) {
  if (call.op.written.size() != 1 || call.op.is_out || !decision.copied.empty()) return false;
  bool pending = false, numbers = false;
  for (auto& operand : call.operands) {
    if (!operand.tensor.defined()) continue;
    if (is_written(call.op, operand)) {
      pending = operand.layout && operand.layout->has_partial();
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
  // Autograd's formulas write into tensors that they have just created (counts of what was scattered, say).
  bool inside_formula = torch::autograd::get_current_graph_task_id() >= 0;
  for (auto& operand : call.operands) {
    if (!is_written(call.op, operand) || !operand.body || !operand.body->layout->has_partial()) continue;
    TORCH_CHECK(inside_formula || pending_writes() == PendingWrites::settle, "[", call.op.name, "] ", describe(call),
                ": in-place operations that require placement changes are not supported. ",
                "Use the op that returns a new tensor, or redistribute first.");
    settle_for(call.op.name.c_str(), operand.tensor);
  }
}

// The same in every process, and for an op and its in-place form. The results' origin follows from it and the
// operands'. Zero where nothing is sent between processes, so that it is not needed.
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

namespace {

void find_forms(const Call& call, Decision& decision) {
  auto& op = call.op;
  auto& plain = op.is_out ? op.functional : op.handle;
  auto forms =
      forms_or_error({plain, op.functional, op.rule, call.args.slice(0, op.functional_args), decision.inputs}, op);
  decision.known_outputs = forms.has_value();
  if (forms) decision.outputs = std::move(*forms);
  for (auto& form : decision.outputs) decision.contiguous.push_back(is_contiguous(form));
}

void plan_moves(const Call& call, Decision& decision) {
  for (size_t i = 0; i < decision.in.size(); ++i) {
    auto& form = decision.inputs[i];
    auto& steps = decision.plans.emplace_back();
    auto* now = call.operands[i].layout;
    bool number = !decision.in[i] && form.defined;
    decision.seen_in.push_back(number ? Layout::replicated(call.mesh) : decision.in[i]);
    if (!decision.in[i] || decision.in[i] == now) continue;
    steps = plan(now, decision.in[i], form.sizes, c10::elementSize(form.dtype));
    decision.any_moves = true;
  }
}

// The values of size arguments on each rank.
void find_local_sizes(const Call& call, Decision& decision) {
  auto& op = call.op;
  if (!decision.known_outputs || op.size_args.empty()) return;
  // A gradient that is not requested has no form; the incoming one has the same.
  bool asked = decision.outputs[0].defined;
  auto& form = asked ? decision.outputs[0] : decision.inputs[0];
  auto* layout = asked ? decision.out[0] : decision.in[0];
  for (auto& slot : call.mesh.slots()) {
    auto shape = local_shape(*layout, form.sizes, slot.coordinate);
    decision.local_shape.assign(shape.begin(), shape.end());
    auto& sizes = decision.local_sizes.emplace_back();
    for (auto arg : op.size_args) sizes.push_back(local_size(op.functional.schema().arguments()[arg], shape));
  }
}

void find_local_strides(const Call& call, Decision& decision) {
  if (!decision.known_outputs || call.mesh.slots().size() != 1) return;
  for (size_t i = 0; i < decision.outputs.size(); ++i) {
    auto& form = decision.outputs[i];
    auto& strides = decision.local_strides.emplace_back();
    if (!form.defined || decision.contiguous[i]) continue;
    auto dense = at::infer_dense_strides(local_shape(*decision.out[i], form.sizes, call.mesh.slots()[0].coordinate),
                                         form.strides);
    strides.assign(dense.begin(), dense.end());
  }
}

// One slot, and the plain op is all there is to do: see Note [The direct path].
bool is_direct(const Call& call, const Decision& decision, const OpCall& seen) {
  auto& op = call.op;
  auto& slots = call.mesh.slots();
  bool silent = decision.route == Route::row || (decision.route == Route::fallback && op.rule && op.rule->asks_for_all);
  if (!silent || slots.size() != 1 || !decision.known_outputs || op.is_random || op.is_out) return false;
  if (decision.scales_pending || !decision.copied.empty() || !decision.agreeing.empty()) return false;
  bool is_view = !op.views_arg.empty() && op.views_arg[0] >= 0;
  if (is_view && decision.any_moves) return false;
  bool needs_local = op.rule && op.rule->local.run && !op.rule->local.only_if_strided;
  if (!needs_local || !op.rule->local.plain_does) return !needs_local;
  return op.rule->local.plain_does(seen, decision.seen_in, decision.out, slots[0]);
}

}  // namespace

std::shared_ptr<const Decision> decide(const Call& call, Lowering lowering) {
  auto decision = std::make_shared<Decision>();
  auto& op = call.op;
  for (auto& operand : call.operands) {
    if (operand.arg < static_cast<int>(op.functional_args)) decision->inputs.push_back(form_of(operand.tensor));
  }
  find_forms(call, *decision);
  choose_layouts(call, *decision, lowering != nullptr);
  if (decision->route == Route::lowering) {
    decision->lowering = std::move(lowering);
    return decision;
  }
  plan_moves(call, *decision);
  find_local_sizes(call, *decision);
  find_local_strides(call, *decision);
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision->inputs, decision->outputs};
  if (decision->known_outputs && op.rule)
    decision->agreeing = agreeing_axes(*op.rule, seen, decision->seen_in, call.mesh);
  decision->scales_pending = scales_pending(call, *decision);
  decision->direct = is_direct(call, *decision, seen);
  decision->what = hash_of_call(call);
  return decision;
}

bool has_new_rule(const Op& op) {
  if (op.rule) return false;
  op.rule = rule_table().find(op.handle.operator_name());
  return op.rule;
}

std::shared_ptr<const Decision> decided(const Op& op, c10::ArrayRef<c10::IValue> arguments, const CallKey* key,
                                        std::optional<Call>& call) {
  has_new_rule(op);
  auto lowering = lowering_for(op, arguments);
  bool may_be_advised = lowering && op.rule && !op.is_random && is_guided();
  std::shared_ptr<const Decision> fresh;
  if (lowering && !may_be_advised) {
    auto lowered = std::make_shared<Decision>();
    lowered->route = Route::lowering;
    lowered->lowering = std::move(lowering);
    fresh = std::move(lowered);
  } else if (lowering) {
    call.emplace(look_at_call(op, arguments));
    fresh = decide(*call, std::move(lowering));
    if (fresh->route != Route::lowering) admit_operands(*call);
  } else {
    call.emplace(read_call(op, arguments));
    fresh = decide(*call);
  }
  if (key && !fresh->unsettled) op.cache.insert(*key, fresh);
  return fresh;
}

Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args) {
  if (!op.planner) return {};
  std::vector<const Layout*> layouts;
  for_each_tensor(op, args, [&](const at::Tensor& tensor, int, int) {
    layouts.push_back(is_dtensor(tensor) ? body_of(tensor).layout : nullptr);
  });
  return lowering_for(op, args, layouts);
}

Lowering lowering_for(const Op& op, c10::ArrayRef<c10::IValue> args, const std::vector<const Layout*>& layouts) {
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
