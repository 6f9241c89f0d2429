#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>

#include "calls.h"
#include "intarsia/dispatch/cache.h"
#include "intarsia/dispatch/register.h"
#include "intarsia/rules/table.h"

namespace intarsia::python {
namespace {

Rule rule_from(py::function function) {
  Rule rule;
  rule.family = "registered";
  rule.rows = [function = shared(std::move(function))](const OpCall& call) {
    py::gil_scoped_acquire locked;
    Rows rows;
    for (auto pair : (*function)(arguments_of(call)).cast<py::sequence>()) {
      auto both = pair.cast<py::sequence>();
      Row row{placements_from(both[1]), placements_from(both[0])};
      TORCH_CHECK_VALUE(row.in.size() == call.inputs.size() && row.out.size() == call.outputs.size(),
                        "[register_sharding] ", call.schema.operator_name(), ": ", str(row), " is a row for ",
                        row.in.size(), " inputs and ", row.out.size(), " results, but the call has ",
                        call.inputs.size(), " and ", call.outputs.size(), ".");
      rows.push_back(std::move(row));
    }
    return rows;
  };
  return rule;
}

void add_rule(const std::string& name, const std::string& overload, py::function function) {
  auto full = overload.empty() ? name : name + "." + overload;
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  rule_table().replace(full, rule_from(std::move(function)));
  register_ruled(handle);
  forget_decisions();
}

void see_calls(const std::string& name, const std::string& overload) {
  register_ruled(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()));
}

}  // namespace

void bind_rules(py::module_& module) {
  py::class_<TensorForm>(module, "TensorForm", "A tensor as a rule sees it.")
      .def_property_readonly("shape",
                             [](const TensorForm& form) {
                               return py::tuple(py::cast(std::vector<int64_t>(form.sizes.begin(), form.sizes.end())));
                             })
      .def_property_readonly(
          "stride",
          [](const TensorForm& form) {
            return py::tuple(py::cast(std::vector<int64_t>(form.strides.begin(), form.strides.end())));
          })
      .def_property_readonly("ndim", &TensorForm::dim)
      .def_property_readonly("dtype", [](const TensorForm& form) { return form.dtype; })
      .def_property_readonly("tensor_meta", [](const TensorForm& form) { return form; });
  module.def("add_rule", &add_rule, py::arg("name"), py::arg("overload"), py::arg("rows"),
             "Says how an op may be split: rows(arguments) -> [(outputs, inputs)].");
  module.def("see_calls", &see_calls, py::arg("name"), py::arg("overload"),
             "Distributed tensors are not handed to the op's own function, which may ask for memory.");
  module.def("forget_decisions", &forget_decisions, "Calls are decided anew: the guide has changed its mind.");
}

}  // namespace intarsia::python
