#include "intarsia/debug/explain.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/debug/rehearsed_call.h"
#include "intarsia/dispatch/decide.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/propagate/guide.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/start.h"

namespace intarsia {
namespace {

constexpr size_t kRowsShown = 12;

}  // namespace

c10::OperatorHandle op_to_explain(const std::string& name) {
  auto full = name.find("::") == std::string::npos ? "aten::" + name : name;
  auto dot = full.find('.');
  auto overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  auto found = c10::Dispatcher::singleton().findSchema({full.substr(0, dot), overload});
  std::string overloads;
  for (auto& other : found ? std::vector<c10::OperatorName>() : c10::Dispatcher::singleton().getAllOpNames()) {
    if (other.name == full.substr(0, dot)) overloads += (overloads.empty() ? " It has " : ", ") + c10::toString(other);
  }
  TORCH_CHECK_VALUE(found, "[explain] there is no op ", full, ". Name the overload too, as in aten::add.Tensor.",
                    overloads.empty() ? "" : overloads + ".");
  return *found;
}

namespace {

struct ImaginedCall {
  std::vector<c10::IValue> args;
  std::vector<at::Tensor> tensors;  // as rules number them
  std::vector<const Layout*> layouts;
};

// The op to which the arguments belong: the functional one for an op with out tensors.
const c10::OperatorHandle& asked_op(const Op& op) { return op.is_out ? op.functional : op.handle; }

const Layout* imagined_layout(const Imagined& imagined, const DeviceMesh& mesh) {
  auto placements = normalized(imagined.placements, imagined.shape.size(), "explain");
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) <= mesh.ndim(), "[explain] ", str(placements), " has ",
                    placements.size(), " placements, but ", mesh.text(), " has ", mesh.ndim(), " axes.");
  placements.resize(mesh.ndim(), Replicate());
  return Layout::get(mesh, placements);
}

// How many of the tensors that are left a list takes: as many as other lists, and the tensors behind it take theirs.
size_t share_of_list(const Op& op, size_t arg, size_t left) {
  auto behind = op.kinds.begin() + static_cast<int64_t>(arg), end = op.kinds.end();
  size_t lists = std::count(behind, end, ArgKind::tensor_list), single = std::count(behind, end, ArgKind::tensor);
  return left > single ? (left - single) / lists : 0;
}

template <class Take>
c10::IValue list_of(const c10::Argument& argument, Take take, size_t count) {
  bool may_lack = argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors()) &&
                  !argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  c10::List<std::optional<at::Tensor>> some;
  c10::List<at::Tensor> all;
  for (; count > 0; --count) {
    auto tensor = take();
    if (may_lack) {
      some.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
    } else {
      all.push_back(tensor);
    }
  }
  return may_lack ? c10::IValue(some) : c10::IValue(all);
}

ImaginedCall imagine(const Op& op, const std::vector<Imagined>& given, const DeviceMesh& mesh,
                     const std::map<std::string, c10::IValue>& arguments) {
  ImaginedCall call;
  auto& schema = asked_op(op).schema();
  for (auto& [name, value] : arguments) {
    auto is_named = [&name = name](auto& argument) { return argument.name() == name; };
    TORCH_CHECK_VALUE(std::any_of(schema.arguments().begin(), schema.arguments().end(), is_named), "[explain] ",
                      op.name, " has no argument \"", name, "\"; the schema is ", schema);
  }
  size_t next = 0;
  auto take = [&] {
    auto& imagined = given[next++];
    call.layouts.push_back(imagined.defined ? imagined_layout(imagined, mesh) : nullptr);
    auto options = at::TensorOptions().device(at::kMeta).dtype(imagined.dtype);
    call.tensors.push_back(imagined.defined ? at::empty(imagined.shape, options) : at::Tensor());
    return call.tensors.back();
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& argument = schema.arguments()[i];
    if (auto named = arguments.find(argument.name()); named != arguments.end()) {
      call.args.push_back(named->second);
    } else if (op.kinds[i] == ArgKind::tensor && next < given.size()) {
      auto tensor = take();
      call.args.push_back(tensor.defined() ? c10::IValue(tensor) : c10::IValue());
    } else if (op.kinds[i] == ArgKind::tensor_list) {
      auto share = share_of_list(op, i, given.size() - next);
      call.args.push_back(list_of(argument, [&] { return take(); }, share));
    } else {
      bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
      TORCH_CHECK_VALUE(argument.default_value() || optional, "[explain] ", op.name, " needs its argument \"",
                        argument.name(), "\". Give it by name; the schema is ", schema);
      call.args.push_back(argument.default_value().value_or(c10::IValue()));
      if (op.kinds[i] == ArgKind::tensor) call.tensors.emplace_back(), call.layouts.push_back(nullptr);
    }
  }
  TORCH_CHECK_VALUE(next == given.size(), "[explain] ", given.size(), " tensors given, but ", op.name, " takes ", next,
                    ".");
  return call;
}

std::string text_of(const std::vector<const Layout*>& in, const std::vector<const Layout*>& out) {
  auto list = [](const std::vector<const Layout*>& layouts) {
    std::string text;
    for (auto* layout : layouts) text += (text.empty() ? "" : ", ") + (layout ? str(layout->placements()) : "none");
    return text;
  };
  return list(in) + " -> " + list(out);
}

std::string plans_of(const Choice& choice, const ImaginedCall& call) {
  std::string text;
  for (size_t i = 0; i < choice.in.size(); ++i) {
    if (!choice.in[i] || choice.in[i] == call.layouts[i]) continue;
    auto steps = plan(call.layouts[i], choice.in[i], call.tensors[i].sizes(), call.tensors[i].element_size());
    text += "input " + std::to_string(i) + ": " + str(steps) + "\n";
  }
  return text;
}

}  // namespace

namespace {

// What dispatch moves when it runs the call on a stage.
void explain_rehearsed(const RehearsedCall& rehearsed, const ImaginedCall& call, Explanation& result) {
  if (result.chosen.empty()) result.chosen = text_of(call.layouts, rehearsed.out);
  result.collectives = "";
  for (auto& event : rehearsed.moves) {
    result.collectives += (result.along ? "along the cut: " : event.op + ": ") + str(event) + "\n";
  }
}

void explain_rows(const Question& question, const ImaginedCall& call, Explanation& result, std::ostream& text) {
  text << "\n        cost  inputs -> outputs\n";
  size_t shown = 0;
  Candidates candidates(question);
  while (auto found = candidates.next()) {
    auto& choice = *found;
    bool chosen = choice.legal && result.chosen.empty();
    if (chosen) {
      result.chosen = text_of(choice.in, choice.out);
      result.cost = choice.cost;
      result.collectives = plans_of(choice, call);
      result.along = choice.route == Route::joint;
    }
    if (shown++ >= kRowsShown && !chosen) continue;
    char cost[32];
    std::snprintf(cost, sizeof cost, "%10.0f", choice.cost);
    text << (chosen ? "=>" : "  ") << cost << "  " << text_of(choice.in, choice.out)
         << (choice.route == Route::joint ? "  (along the cut)" : "")
         << (choice.legal ? "" : "  (the parts would not match)") << "\n";
  }
  if (shown > kRowsShown) text << "  and " << shown - kRowsShown << " dearer ones\n";
}

// The forms of the results, if rows decide the call: it has a rule, no lowering, and writes nothing.
std::optional<std::vector<TensorForm>> forms_for_rows(const Op& op, const ImaginedCall& call,
                                                      const std::vector<TensorForm>& inputs) {
  bool writes = !op.is_out && !op.written.empty();
  if (!op.rule || op.always || op.changes_form || op.is_random || writes || lowering_for(op, call.args, call.layouts))
    return std::nullopt;
  return forms_of_results({op.functional, op.functional, op.rule, call.args, inputs});
}

const char* how_it_runs(const Op& op, const RehearsedCall& rehearsed) {
  auto& whole = rehearsed.fallbacks;
  bool is_whole = std::find(whole.begin(), whole.end(), op.name) != whole.end();
  if (is_whole) return "  It has no rule: it runs on whole tensors.\n";
  if (op.planner || op.always) return "  It runs along the cut, by other ops and collectives of its own.\n";
  return op.rule ? "" : "  It is made of other ops, each of which is decided by itself.\n";
}

void describe_inputs(const ImaginedCall& call, std::ostream& text) {
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    auto& tensor = call.tensors[i];
    if (!tensor.defined()) continue;
    text << "  input " << i << ": " << tensor.sizes() << " " << str(call.layouts[i]->placements());
    if (tensor.scalar_type() != at::kFloat) text << " " << tensor.scalar_type();
    text << "\n";
  }
}

}  // namespace

Explanation explain(const std::string& name, const std::vector<Imagined>& given, const DeviceMesh& mesh,
                    const std::map<std::string, c10::IValue>& arguments) {
  start();
  Op op(op_to_explain(name));
  auto call = imagine(op, given, mesh, arguments);
  std::vector<TensorForm> inputs;
  for (auto& tensor : call.tensors) inputs.push_back(form_of(tensor));
  Explanation result;
  std::ostringstream text;
  text << op.name << (op.rule ? "  [" + op.rule->family + "]" : "") << " on " << mesh.text() << "\n";
  describe_inputs(call, text);
  auto outputs = forms_for_rows(op, call, inputs);
  if (outputs) {
    OpCall seen{op.functional.schema(), call.args, inputs, *outputs};
    Question question{op.rule, seen, mesh, call.layouts};
    auto advice = advice_for(question);
    question.advice = advice ? &*advice : nullptr;
    explain_rows(question, call, result, text);
  }
  auto rehearsed = rehearse(asked_op(op), call.args, call.layouts, mesh);
  if (!outputs) {
    text << how_it_runs(op, rehearsed);
    result.along = op.planner || op.always;
  }
  if (!outputs || result.along) explain_rehearsed(rehearsed, call, result);
  result.moves = rehearsed.moves;
  result.needs_data = rehearsed.with_data;
  if (rehearsed.with_data) text << "  It needs data. This is what it does with ones, and zeros for whole numbers.\n";
  text << "\n" << (result.collectives.empty() ? "Nothing moves.\n" : result.collectives);
  if (!outputs) text << "Result: " << result.chosen.substr(result.chosen.find(" -> ") + 4) << "\n";
  result.text = text.str();
  return result;
}

}  // namespace intarsia
