#include "intarsia/debug/explain.h"

#include <cstdio>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/debug/rehearsed_call.h"
#include "intarsia/dispatch/decide.h"
#include "intarsia/propagate/choose.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/start.h"

namespace intarsia {
namespace {

constexpr size_t kRowsShown = 12;

c10::OperatorHandle find_op(const std::string& name) {
  auto full = name.find("::") == std::string::npos ? "aten::" + name : name;
  auto dot = full.find('.');
  auto overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  auto found = c10::Dispatcher::singleton().findSchema({full.substr(0, dot), overload});
  TORCH_CHECK_VALUE(found, "[explain] there is no op ", full, ". Name the overload too, as in aten::add.Tensor.");
  return *found;
}

struct ImaginedCall {
  std::vector<c10::IValue> args;
  std::vector<at::Tensor> tensors;  // as rules number them
  std::vector<const Layout*> layouts;
};

ImaginedCall imagine(const Op& op, const std::vector<Imagined>& given, const DeviceMesh& mesh,
                     const std::map<std::string, c10::IValue>& arguments) {
  ImaginedCall call;
  auto& schema = op.functional.schema();
  size_t next = 0;
  auto take = [&] {
    auto& imagined = given[next++];
    auto placements = normalized(imagined.placements, imagined.shape.size(), "explain");
    TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) <= mesh.ndim(), "[explain] ", str(placements), " has ",
                      placements.size(), " placements, but ", mesh.text(), " has ", mesh.ndim(), " axes.");
    placements.resize(mesh.ndim(), Replicate());
    call.layouts.push_back(Layout::get(mesh, placements));
    call.tensors.push_back(at::empty(imagined.shape, at::TensorOptions().device(at::kMeta).dtype(imagined.dtype)));
    return call.tensors.back();
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& argument = schema.arguments()[i];
    if (auto named = arguments.find(argument.name()); named != arguments.end()) {
      call.args.push_back(named->second);
    } else if (op.kinds[i] == ArgKind::tensor && next < given.size()) {
      call.args.emplace_back(take());
    } else if (op.kinds[i] == ArgKind::tensor_list) {
      c10::List<at::Tensor> list;
      while (next < given.size()) list.push_back(take());
      call.args.emplace_back(list);
    } else {
      bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
      TORCH_CHECK_VALUE(argument.default_value() || optional, "[explain] ", op.name, " needs its argument \"",
                        argument.name(), "\". Give it by name; the schema is ", schema);
      call.args.push_back(argument.default_value().value_or(c10::IValue()));
      if (op.kinds[i] == ArgKind::tensor) call.tensors.emplace_back(), call.layouts.push_back(nullptr);
    }
  }
  TORCH_CHECK_VALUE(next == given.size(), "[explain] ", given.size(), " tensors given, but ", op.name, " takes ", next, ".");
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

Imagined parse_imagined(std::string_view text) {
  auto open = text.find('['), close = text.find(']');
  TORCH_CHECK_VALUE(open != text.npos && close != text.npos && open < close, "[explain] cannot read the tensor \"", text,
                    "\". Write its shape and placements, as in \"[8, 12] S(0), R\".");
  Imagined result;
  std::stringstream shape(std::string(text.substr(open + 1, close - open - 1)));
  std::string extent;
  while (std::getline(shape, extent, ',')) result.shape.push_back(std::stoll(extent));
  auto rest = std::string(text.substr(close + 1));
  if (auto first = rest.find_first_not_of(' '); first != rest.npos) {
    rest = rest.substr(first);
    result.placements = parse_placements(rest[0] == '[' ? rest : "[" + rest + "]");
  }
  return result;
}

namespace {

// What the op itself moves along a cut: dispatch runs the call without data.
std::string moves_along(const RehearsedCall& rehearsed) {
  std::string text;
  for (auto& event : rehearsed.moves) text += "along the cut: " + str(event) + "\n";
  return text;
}

// Some ops of LibTorch that ways and joint calls are made of cannot run without data.
void explain_along(const Op& op, const ImaginedCall& call, const DeviceMesh& mesh, Explanation& result) {
  try {
    auto rehearsed = rehearse(op.functional, call.args, call.layouts, mesh);
    if (result.chosen.empty()) result.chosen = text_of(call.layouts, rehearsed.out);
    result.collectives = moves_along(rehearsed);
  } catch (const c10::Error& error) {
    bool lacks_data = dynamic_cast<const c10::NotImplementedError*>(&error) ||
                      std::string_view(error.what_without_backtrace()).find("not allocated yet") != std::string_view::npos;
    if (!lacks_data) throw;
    TORCH_CHECK(!result.chosen.empty(), "[explain] ", op.name, " runs along a cut, and cannot be rehearsed without data.");
    result.collectives += "along the cut: what windows need of other ranks, which cannot be told without data\n";
  }
}

void explain_rows(const Question& question, const ImaginedCall& call, Explanation& result, std::ostream& text) {
  text << "\n        cost  inputs -> outputs\n";
  size_t shown = 0;
  for (auto& choice : choices(question)) {
    bool legal = is_legal(question, choice);
    bool chosen = legal && result.chosen.empty();
    if (chosen) {
      result.chosen = text_of(choice.in, choice.out);
      result.cost = choice.cost;
      result.collectives = plans_of(choice, call);
      result.along = choice.along;
    }
    if (shown++ >= kRowsShown && !chosen) continue;
    char cost[32];
    std::snprintf(cost, sizeof cost, "%10.0f", choice.cost);
    text << (chosen ? "=>" : "  ") << cost << "  " << text_of(choice.in, choice.out)
         << (choice.along ? "  (along the cut)" : "") << (legal ? "" : "  (the parts would not match)") << "\n";
  }
  if (shown > kRowsShown) text << "  and " << shown - kRowsShown << " dearer ones\n";
}

}  // namespace

Explanation explain(const std::string& name, const std::vector<Imagined>& given, const DeviceMesh& mesh,
                    const std::map<std::string, c10::IValue>& arguments) {
  Op op(find_op(name));
  auto call = imagine(op, given, mesh, arguments);
  std::vector<TensorForm> inputs;
  for (auto& tensor : call.tensors) inputs.push_back(form_of(tensor));
  Explanation result;
  std::ostringstream text;
  text << op.name << "  " << (op.rule ? "[" + op.rule->family + "]" : op.planner || op.way ? "" : "has no rule: it runs on whole tensors")
       << " on " << mesh.text() << "\n";
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined) continue;
    text << "  input " << i << ": " << at::IntArrayRef(inputs[i].sizes) << " " << str(call.layouts[i]->placements()) << "\n";
  }
  if (op.way || way_for(op, call.args, call.layouts)) {
    result.along = true;
    text << "  It runs along the cut, by other ops and collectives of its own.\n";
  } else {
    auto outputs = forms_of_results({op.functional, op.functional, op.rule, call.args, inputs});
    TORCH_CHECK(outputs, "[explain] ", op.name, " cannot tell its result's shape without data.");
    OpCall seen{op.functional.schema(), call.args, inputs, *outputs};
    explain_rows({op.rule, seen, mesh, call.layouts, -1}, call, result, text);
  }
  if (result.along) explain_along(op, call, mesh, result);
  text << "\n" << (result.collectives.empty() ? "Nothing moves.\n" : result.collectives);
  result.text = text.str();
  return result;
}

}  // namespace intarsia
