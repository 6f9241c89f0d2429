#include "intarsia/dispatch/run.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/call.h"
#include "intarsia/dispatch/decide.h"
#include "intarsia/dispatch/direct.h"
#include "intarsia/dispatch/errors.h"
#include "intarsia/dispatch/generator.h"
#include "intarsia/dispatch/moves.h"
#include "intarsia/dispatch/numbers.h"
#include "intarsia/dispatch/origins.h"
#include "intarsia/dispatch/out.h"
#include "intarsia/dispatch/twin_slots.h"
#include "intarsia/dispatch/watch.h"
#include "intarsia/dispatch/without_data.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/rules/advised.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// The inputs in the chosen layouts.
Inputs redistribute_inputs(const Call& call, const Decision& decision) {
  Inputs inputs;
  for (size_t i = 0; i < decision.in.size(); ++i) {
    if (!decision.in[i]) {
      inputs.emplace_back();
    } else if (only_written(call, decision, i)) {
      auto& tensor = call.operands[i].tensor;
      auto& slots = call.operands[i].body->shards();
      inputs.push_back(made_once(slots, [&](auto& shard) { return at::empty(tensor.sizes(), shard.options()); }));
    } else if (!decision.plans[i].steps.empty()) {
      inputs.push_back(moved_for(call.op.name.c_str(), call.operands[i].tensor, decision.in[i], decision.plans[i]));
    } else {
      inputs.push_back(call.operands[i].body->shards());
    }
  }
  for (auto i : decision.copied) inputs[i] = made_once(inputs[i], [](auto& shard) { return shard.clone(); });
  return inputs;
}

at::Tensor local_operand(const Call& call, const Inputs& inputs, size_t i, size_t slot) {
  return call.operands[i].body ? inputs[i][slot] : call.operands[i].tensor;
}

// The arguments of one rank: local tensors instead of distributed ones, local sizes instead of global ones.
Stack local_arguments(const Call& call, const Decision& decision, const Inputs& inputs, size_t slot) {
  Stack stack(call.args.begin(), call.args.begin() + call.op.functional_args);
  for (size_t i = 0; i < decision.in.size();) {
    auto& operand = call.operands[i];
    if (operand.index < 0) {
      if (operand.body) stack[operand.arg] = inputs[i][slot];
      ++i;
      continue;
    }
    auto arg = operand.arg;
    bool optionals = !call.args[arg].isTensorList();
    c10::List<at::Tensor> list;
    c10::List<std::optional<at::Tensor>> optional_list;
    for (; i < decision.in.size() && call.operands[i].arg == arg; ++i) {
      auto tensor = local_operand(call, inputs, i, slot);
      if (optionals) {
        optional_list.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
      } else {
        list.push_back(tensor);
      }
    }
    stack[arg] = optionals ? c10::IValue(optional_list) : c10::IValue(list);
  }
  if (!decision.local_sizes.empty()) {
    for (size_t i = 0; i < call.op.size_args.size(); ++i) stack[call.op.size_args[i]] = decision.local_sizes[slot][i];
  }
  return stack;
}

void call_local(const Call& call, const Decision& decision, const Slot& slot, Stack& stack) {
  auto& op = call.op;
  if (op.rule && op.rule->local.run && decision.known_outputs) {
    OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision.inputs, decision.outputs};
    LocalCall local{seen, decision.seen_in, decision.out, slot, stack, op.functional};
    if (op.written.empty() || op.is_out) return op.rule->local.run(local);
    auto targets = stack;  // in place: the results of the rule's function are written into the shard
    op.rule->local.run(local);
    for (size_t r = 0; r < stack.size() && r < op.returns_arg.size(); ++r) {
      if (op.returns_arg[r] < 0) continue;
      auto target = targets[op.returns_arg[r]].toTensor();
      if (!target.is_same(stack[r].toTensor())) target.copy_(stack[r].toTensor());
    }
    return;
  }
  (op.is_out ? op.functional : op.handle).callBoxed(stack);
}

// Flattened tensors of a result, in the order of Decision::outputs.
std::vector<at::Tensor> tensors_of(const Stack& values) {
  std::vector<at::Tensor> tensors;
  for (auto& value : values) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    } else if (value.isNone()) {
      tensors.emplace_back();
    }
  }
  return tensors;
}

std::vector<Stack> call_on_all_slots(const Call& call, const Decision& decision, Inputs& inputs) {
  std::vector<Stack> results;
  auto& slots = call.mesh.slots();
  if (C10_UNLIKELY(OpWatch::open()) && lack_data(inputs) && run_without_data(call, decision, results)) return results;
  std::optional<AgreedDraw> agreed;
  if (call.op.is_random) agreed.emplace(call.op.name, call.mesh, call.args);
  SlotErrors errors;
  TwinSlots twins(call, decision, inputs);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    auto first = twins.first(slot);
    if ((call.op.is_random && slot > 0) || first != slot) {
      bool follows = first != slot && errors.repeat(first, slot);
      results.push_back(follows ? twins.results(results[first], slot) : Stack());
      continue;
    }
    WriteForTwins writes(twins.tensors_at(slot));
    twins.write_for_others(slot, writes);
    auto& stack = results.emplace_back(local_arguments(call, decision, inputs, slot));
    auto run = [&] { call_local(call, decision, slots[slot], stack); };
    if (call.op.is_random) {
      run();  // all ranks draw the same from the same tensors, so an error of one is an error of all
    } else {
      errors.attempt(slot, run);
    }
  }
  errors.raise(call.op.name, call.mesh, decision.agreeing);
  if (call.op.is_random && slots.size() > 1) share_random_results(call, decision, inputs, results);
  return results;
}

// Runs all hosted ranks together, by Rule::joint.
std::vector<Stack> call_jointly(const Call& call, const Decision& decision, Inputs& inputs) {
  auto& op = call.op;
  OpCall seen{op.functional.schema(), call.args.slice(0, op.functional_args), decision.inputs, decision.outputs};
  JointCall joint{seen, call.mesh, decision.in, decision.out, {inputs.begin(), inputs.end()}, {}};
  inputs.clear();
  joint.outputs.resize(decision.outputs.size());
  CauseScope cause(op.name.c_str(), true);
  op.rule->joint.run(joint);
  std::vector<Stack> results(joint.slots());
  for (size_t slot = 0; slot < results.size(); ++slot) {
    for (size_t i = 0; i < decision.outputs.size(); ++i) {
      results[slot].emplace_back(decision.outputs[i].defined ? joint.outputs[i][slot] : at::Tensor());
    }
  }
  return results;
}

// Reads the forms of results that only running could give: every rank holds the whole.
void read_forms(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh, Decision& decision) {
  for (auto& tensor : tensors) {
    decision.outputs.push_back(form_of(tensor));
    decision.out.push_back(Layout::replicated(mesh));
  }
}

int operand_of_arg(const Call& call, int arg) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    if (call.operands[i].arg == arg) return i;
  }
  return -1;
}

// The body of a view, tied to the tensor it views: by shared memory, or else by a recipe.
c10::intrusive_ptr<DTensorBody> view_body(const Call& call, const Decision& decision, Shards shards, int viewed_arg,
                                          size_t output) {
  auto viewed = operand_of_arg(call, viewed_arg);
  auto& base = call.operands[viewed];
  auto* layout = decision.out[output];
  if (!base.body) return c10::make_intrusive<DTensorBody>(std::move(shards), layout);
  auto& theirs = base.body->shards();
  bool shares = decision.plans[viewed].steps.empty();
  for (size_t slot = 0; slot < shards.size(); ++slot) shares = shares && shards[slot].is_alias_of(theirs[slot]);
  if (shares) {
    auto body = c10::make_intrusive<DTensorBody>(std::move(shards), layout);
    body->view_memory_of(shared_body_of(base.tensor));
    return body;
  }
  shards = made_once(shards, [](auto& shard) { return shard.clone(); });  // memory that writes to the base cannot reach
  follow_strides(shards, decision.outputs[output].strides);
  auto body = c10::make_intrusive<DTensorBody>(std::move(shards), layout);
  // A handle of its own: the caller's may get another shape (squeeze_) or other data (set_data).
  auto viewed_tensor = another_handle(base.tensor);
  auto recipe =
      std::make_unique<Recipe>(Recipe{viewed_tensor,
                                      call.op.handle,
                                      call.args.vec(),
                                      static_cast<size_t>(viewed_arg),
                                      output,
                                      {decision.outputs[output].sizes.begin(), decision.outputs[output].sizes.end()},
                                      base.body->version()});
  recipe->local = decision.plans[viewed].steps.empty() && call.op.rule && call.op.rule->keeps_order;
  recipe->args[viewed_arg] = c10::IValue();
  body->follow(std::move(recipe));
  return body;
}

// Shards what was written into copies as the tensors are sharded, and copies it in.
void write_back(const Call& call, const Decision& decision, const Inputs& inputs) {
  CauseScope cause(call.op.name.c_str(), true);
  for (auto i : decision.copied) {
    auto& operand = call.operands[i];
    auto sizes = operand.tensor.sizes();
    auto returned =
        std::find(call.op.returns_arg.begin(), call.op.returns_arg.end(), operand.arg) - call.op.returns_arg.begin();
    auto* from = returned < static_cast<int64_t>(decision.out.size()) ? decision.out[returned] : decision.in[i];
    auto back = plan(from, operand.body->layout, sizes, c10::elementSize(operand.tensor.scalar_type()));
    auto cut = run(back, inputs[i], sizes);
    auto& targets = operand.body->shards();
    write_once(targets, cut, [&](size_t slot) { targets[slot].copy_(cut[slot]); });
  }
}

// Wraps local results as distributed tensors, and pushes them as the schema requires.
void wrap_results(const Call& call, const Decision& made, const std::vector<Stack>& results, Stack& stack) {
  std::vector<std::vector<at::Tensor>> locals;
  for (auto& values : results) locals.push_back(tensors_of(values));
  Decision completed;
  if (!made.known_outputs) completed = made;
  auto& decision = made.known_outputs ? made : completed;
  if (!made.known_outputs) {
    TORCH_CHECK(!results.empty(), "[", call.op.name, "] this process takes no part in ", call.mesh.text(),
                ", and the form of the result depends on data. Call it only on ranks of the mesh.");
    read_forms(locals[0], call.mesh, completed);
  }
  size_t output = 0;
  auto next = [&](int viewed_arg) {
    auto& form = decision.outputs[output];
    at::Tensor result;
    if (form.defined) {
      Shards shards;
      for (auto& tensors : locals) shards.push_back(tensors[output]);
      if (viewed_arg < 0 && made.known_outputs) follow_strides(shards, form.strides, decision.contiguous[output]);
      auto dtype = c10::scalarTypeToTypeMeta(form.dtype);
      if (viewed_arg >= 0) {
        auto body = view_body(call, decision, std::move(shards), viewed_arg, output);
        result = wrap_view(call.args[viewed_arg].toTensor(), std::move(body), form.sizes, form.strides, dtype);
      } else {
        auto body = c10::make_intrusive<DTensorBody>(std::move(shards), decision.out[output]);
        result = wrap(std::move(body), form.sizes, form.strides, dtype);
      }
    }
    ++output;
    return result;
  };
  auto& returns = call.op.handle.schema().returns();
  for (size_t r = 0; r < returns.size(); ++r) {
    if (call.op.returns_arg[r] >= 0) {
      stack.push_back(call.args[call.op.returns_arg[r]]);
      ++output;
      continue;
    }
    if (!results.empty() && !results[0][r].isTensor() && !results[0][r].isTensorList() && !results[0][r].isNone()) {
      stack.push_back(results[0][r]);
      continue;
    }
    if (returns[r].type()->kind() != c10::TypeKind::ListType) {
      stack.emplace_back(next(call.op.views_arg[r]));
      continue;
    }
    c10::List<at::Tensor> list;
    auto count = results.empty() ? decision.outputs.size() : results[0][r].toTensorList().size();
    for (size_t i = 0; i < count; ++i) list.push_back(next(call.op.views_arg[r]));
    stack.emplace_back(std::move(list));
  }
}

// Replaces the arguments on the stack by local ones, in place, and the results by distributed ones.
bool run_directly(const Op& op, Stack& stack, const Decision& decision) {
  auto count = op.kinds.size();
  auto* args = stack.data() + stack.size() - count;
  DirectCall call(op);
  for (size_t i = 0; i < count; ++i) {
    if (op.kinds[i] == ArgKind::tensor && args[i].isTensor() && !call.admits(args[i].toTensor())) return false;
  }
  if (!call.follows(&decision)) return false;
  call.add_numbers(bits_of_numbers(op, c10::ArrayRef<c10::IValue>(args, count)));
  for (size_t i = 0; i < count; ++i) {
    if (op.kinds[i] != ArgKind::tensor) continue;
    auto local = call.next_local(args[i].isTensor() ? args[i].toTensor() : at::Tensor());
    if (local.defined()) args[i] = std::move(local);
  }
  auto& sizes = call.decision().local_sizes;
  for (size_t i = 0; i < op.size_args.size(); ++i) args[op.size_args[i]] = sizes[0][i];
  if (call.goes_to_cpu()) {
    op.handle.redispatchBoxed(kCpu, &stack);
  } else {
    op.handle.callBoxed(stack);
  }
  auto* results = stack.data() + stack.size() - op.returns_arg.size();
  for (size_t r = 0; r < op.returns_arg.size(); ++r) results[r] = call.next_result(std::move(results[r]).toTensor());
  return true;
}

void run_lowering(const Op& op, const Lowering& lowering, Stack& arguments, Stack& stack) {
  CauseScope cause(op.name.c_str(), true);
  lowering(arguments);
  for (auto& value : arguments) stack.push_back(std::move(value));
}

// A lowering that was chosen because of the arguments' layouts relies on our own choices.
void run_unguided(const Op& op, const Lowering& lowering, Stack& arguments, Stack& stack) {
  UnguidedScope own_choices;
  run_lowering(op, lowering, arguments, stack);
}

// Other ops replace this one, as with lists or distances: a guide is asked about each of them, unless the lowering has
// a version for guides.
void run_always(const Op& op, Stack& arguments, Stack& stack) {
  if (op.always->if_advised && is_guided()) return run_unguided(op, op.always->if_advised, arguments, stack);
  run_lowering(op, op.always->lowering, arguments, stack);
}

void run_unwatched(const Op& op, Stack& stack, bool may_be_direct, Found found);

// Runs the call by rows, by Rule::joint or on whole tensors.
void run_rows(const Op& op, Stack& arguments, Stack& stack, const Call& call, const Decision& decision) {
  if (C10_UNLIKELY(decision.unsettled || (decision.scales_pending && has_reduced_target(call)))) {
    settle_written(call);  // now it is another call
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    return run_unwatched(op, stack, false, {});
  }
  if (decision.route == Route::fallback) announce_fallback(call);
  auto operands = origin_of_operands(call);
  OriginScope moves(operands);
  auto inputs = redistribute_inputs(call, decision);
  bool joint = decision.route == Route::joint;
  auto results = joint ? call_jointly(call, decision, inputs) : call_on_all_slots(call, decision, inputs);
  write_back(call, decision, inputs);
  auto made = noted(call, decision, operands);
  for (auto& operand : call.operands) {
    bool written = std::find(op.written.begin(), op.written.end(), operand.arg) != op.written.end();
    if (written && operand.body) operand.body->written(made);
  }
  wrap_results(call, decision, results, stack);
  mark_results(op, stack, made);
}

// How a call goes through dispatch: see docs/a_call.md.
void run_unwatched(const Op& op, Stack& stack, bool may_be_direct, Found found) {
  c10::impl::ExcludeDispatchKeyGuard guard(kAboveKernels);
  auto count = op.handle.schema().arguments().size();
  bool always = op.always && op.always->lowering;
  if (op.is_out && !(op.planner && !is_guided()) && !always) return run_out_op(op, stack);
  if (op.changes_form) return run_form_op(op, stack);
  c10::ArrayRef<c10::IValue> given(stack.data() + stack.size() - count, count);
  CallKey key;
  if (!always && !found.key && make_key(op, given, key)) found = {&key, op.cache.find(key)};
  if (may_be_direct && found.decision && found.decision->direct && run_directly(op, stack, *found.decision)) return;

  Stack arguments(std::make_move_iterator(stack.end() - count), std::make_move_iterator(stack.end()));
  stack.erase(stack.end() - count, stack.end());
  if (always) return run_always(op, arguments, stack);
  auto decision = found.decision;
  if (decision && decision->route == Route::lowering) return run_unguided(op, decision->lowering, arguments, stack);
  if (decision && decision->route == Route::fallback && has_new_rule(op)) decision = nullptr;
  // Whether a plain tensor becomes distributed depends on which tensors see its memory, and that is not part of a key.
  bool may_be_plain = !decision || !op.written.empty();
  if (may_be_plain && C10_UNLIKELY(is_plain_call(op, arguments))) return run_plain_call(op, arguments, stack);
  std::optional<Call> call;
  if (!decision) decision = decided(op, arguments, found.key, call);
  if (decision->route == Route::lowering) return run_unguided(op, decision->lowering, arguments, stack);
  if (!call) call.emplace(read_call(op, arguments));
  run_rows(op, arguments, stack, *call, *decision);
}

}  // namespace

void run_op(const Op& op, Stack& stack, Found found) {
  if (C10_UNLIKELY(c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Conjugate))) {
    LazyValuesScope lazy;
    return run_op(op, stack, found);
  }
  if (C10_LIKELY(!OpWatch::open())) return run_unwatched(op, stack, op.may_be_direct, found);
  OpWatch::run(op.handle.schema(), stack, [&] { run_unwatched(op, stack, false, found); });
}

}  // namespace intarsia
