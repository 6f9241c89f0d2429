#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/library.h>

#include "bindings.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/kernel.h"
#include "intarsia/tensor/meta.h"

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

// An op of another library may bring a kernel for all devices, which would come before our fallback: the rule counts
// only if the op has our kernel.
class RuledKernel final : public c10::OperatorKernel {
 public:
  explicit RuledKernel(const c10::OperatorHandle& handle) : op_(std::make_unique<Op>(handle)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { run_op(*op_, *stack); }

 private:
  std::unique_ptr<Op> op_;
};

void take_over(const c10::OperatorHandle& handle) {
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>;  // what they hold lives as long as they do
  auto name = c10::toString(handle.operator_name());
  auto cut = name.find("::");
  if (name.substr(0, cut) == "aten" || handle.hasKernelForDispatchKey(kDTensorKey)) return;
  auto& library = libraries->emplace_back(std::make_unique<torch::Library>(
      torch::Library::IMPL, name.substr(0, cut), kDTensorKey, __FILE__, __LINE__));
  auto kernel = c10::BoxedKernel::makeFromFunctor(std::make_unique<RuledKernel>(handle));
  library->impl(name.substr(cut + 2).c_str(), torch::CppFunction::makeFromBoxedKernel(std::move(kernel)));
}

void add_rule(const std::string& name, const std::string& overload, py::function function) {
  auto full = overload.empty() ? name : name + "." + overload;
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  auto& table = rule_table();
  bool late = handle.hasKernelForDispatchKey(kDTensorKey) && !table.rules().count(full);
  TORCH_CHECK(!late, "[register_sharding] ", full, " has no rule that could be replaced, and distributed tensors exist ",
              "already. Register it before the first one is made.");
  table[full] = rule_from(std::move(function));
  take_over(handle);
  if (table.find_decomposition(handle.operator_name())) table.decompose(full, [](auto&) { return false; });
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
