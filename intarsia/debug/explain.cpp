#include "intarsia/debug/explain.h"

#include <cstdio>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/propagate/choose.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/op.h"

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

std::vector<TensorForm> outputs_of(const Op& op, const ImaginedCall& call, const std::vector<TensorForm>& inputs) {
  auto stack = call.args;
  std::vector<TensorForm> outputs;
  try {
    op.functional.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    TORCH_CHECK(op.rule && op.rule->shapes, "[explain] ", op.name, " cannot tell its result's shape without data.");
    OpCall seen{op.functional.schema(), call.args, inputs, outputs};
    for (auto& shape : op.rule->shapes(seen)) {
      outputs.push_back(form_of(at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(inputs[0].dtype))));
    }
    return outputs;
  }
  for (auto& value : stack) {
    if (value.isTensor()) outputs.push_back(form_of(value.toTensor()));
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) outputs.push_back(form_of(tensor));
    }
  }
  return outputs;
}

std::string text_of(const Choice& choice) {
  auto list = [](const std::vector<const Layout*>& layouts) {
    std::string text;
    for (auto* layout : layouts) text += (text.empty() ? "" : ", ") + (layout ? str(layout->placements()) : "none");
    return text;
  };
  return list(choice.in) + " -> " + list(choice.out);
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

Explanation explain(const std::string& name, const std::vector<Imagined>& given, const DeviceMesh& mesh,
                    const std::map<std::string, c10::IValue>& arguments) {
  Op op(find_op(name));
  auto call = imagine(op, given, mesh, arguments);
  std::vector<TensorForm> inputs;
  for (auto& tensor : call.tensors) inputs.push_back(form_of(tensor));
  auto outputs = outputs_of(op, call, inputs);
  OpCall seen{op.functional.schema(), call.args, inputs, outputs};
  auto all = choices({op.rule, seen, mesh, call.layouts, -1});

  Explanation result;
  std::ostringstream text;
  text << op.name << "  " << (op.rule ? "[" + op.rule->family + "]" : "has no rule: it runs on whole tensors") << " on "
       << mesh.text() << "\n";
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined) continue;
    text << "  input " << i << ": " << at::IntArrayRef(inputs[i].sizes) << " " << str(call.layouts[i]->placements()) << "\n";
  }
  if (op.decomposition) text << "  Where a dim that it works along is cut it is done by other ops; these are its other choices.\n";
  text << "\n        cost  inputs -> outputs\n";
  size_t shown = 0;
  for (auto& choice : all) {
    bool legal = !op.rule || !op.rule->legal || op.rule->legal(seen, *choice.in[0], *choice.out[0]);
    bool chosen = legal && result.chosen.empty();
    if (chosen) {
      result.chosen = text_of(choice);
      result.cost = choice.cost;
      result.collectives = plans_of(choice, call);
    }
    if (shown++ >= kRowsShown && !chosen) continue;
    char cost[32];
    std::snprintf(cost, sizeof cost, "%10.0f", choice.cost);
    text << (chosen ? "=>" : "  ") << cost << "  " << text_of(choice) << (legal ? "" : "  (the parts would not match)") << "\n";
  }
  if (shown > kRowsShown) text << "  and " << shown - kRowsShown << " dearer ones\n";
  text << "\n" << (result.collectives.empty() ? "Nothing moves.\n" : result.collectives);
  result.text = text.str();
  return result;
}

}  // namespace intarsia
