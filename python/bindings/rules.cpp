#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings.h"
#include "intarsia/dispatch/register.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia::python {
namespace {

// A Python function that the core may drop on a thread that does not hold the GIL.
std::shared_ptr<py::function> shared(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            py::gil_scoped_acquire locked;
            delete held;
          }};
}

// The arguments of a call as Python sees them: tensors are their forms.
py::list arguments_of(const OpCall& call) {
  py::list list;
  size_t tensor = 0;
  for (auto& arg : call.args) {
    if (arg.isTensor()) {
      list.append(call.inputs[tensor++]);
    } else if (arg.isTensorList()) {
      py::list forms;
      for (size_t i = 0; i < arg.toTensorList().size(); ++i) forms.append(call.inputs[tensor++]);
      list.append(forms);
    } else {
      list.append(torch::jit::toPyObject(arg));
    }
  }
  return list;
}

Placements placements_from(const py::handle& list) {
  Placements placements;
  for (auto item : list.cast<py::sequence>()) placements.push_back(placement_from(item));
  return placements;
}

Rule rule_from(py::function function) {
  Rule rule;
  rule.family = "registered";
  rule.rows = [function = shared(std::move(function))](const OpCall& call) {
    py::gil_scoped_acquire locked;
    Rows rows;
    for (auto pair : (*function)(arguments_of(call)).cast<py::sequence>()) {
      auto both = pair.cast<py::sequence>();
      rows.push_back({placements_from(both[1]), placements_from(both[0])});
    }
    return rows;
  };
  return rule;
}

void add_rule(const std::string& name, const std::string& overload, py::function function) {
  auto full = overload.empty() ? name : name + "." + overload;
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  auto& table = rule_table();
  bool late = handle.hasKernelForDispatchKey(kDTensorKey) && !table.rules().count(full);
  TORCH_CHECK(!late, "[register_sharding] ", full, " has no rule that could be replaced, and distributed tensors exist ",
              "already. Register it before the first one is made.");
  table.replace(full, rule_from(std::move(function)));
  register_ruled(handle);
}

}  // namespace

void bind_rules(py::module_& module) {
  py::class_<TensorForm>(module, "TensorForm", "A tensor as a rule sees it.")
      .def_property_readonly("shape", [](const TensorForm& form) { return py::tuple(py::cast(std::vector<int64_t>(form.sizes.begin(), form.sizes.end()))); })
      .def_property_readonly("stride", [](const TensorForm& form) { return py::tuple(py::cast(std::vector<int64_t>(form.strides.begin(), form.strides.end()))); })
      .def_property_readonly("ndim", &TensorForm::dim)
      .def_property_readonly("dtype", [](const TensorForm& form) { return form.dtype; })
      .def_property_readonly("tensor_meta", [](const TensorForm& form) { return form; });
  module.def("add_rule", &add_rule, py::arg("name"), py::arg("overload"), py::arg("rows"),
             "Says how an op may be split: rows(arguments) -> [(outputs, inputs)].");
}

}  // namespace intarsia::python
