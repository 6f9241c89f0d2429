#include "calls.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace intarsia::python {
namespace {

c10::TypePtr without_optional(c10::TypePtr type) {
  auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

bool is_tensor_type(const c10::TypePtr& type) { return without_optional(type)->kind() == c10::TypeKind::TensorType; }

bool is_list_of_tensors(const c10::TypePtr& type) {
  auto list = without_optional(type)->cast<c10::ListType>();
  return list && is_tensor_type(list->getElementType());
}

// Kernels get dtypes and their like as numbers; functions of Python know them as objects.
py::object value_from(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isInt()) {
    auto kind = without_optional(argument.real_type())->kind();
    if (kind == c10::TypeKind::ScalarTypeType) return py::cast(value.toScalarType());
    if (kind == c10::TypeKind::LayoutType)
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
    if (kind == c10::TypeKind::MemoryFormatType)
      return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
  }
  return torch::jit::toPyObject(value);
}

}  // namespace

std::shared_ptr<py::function> shared(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            py::gil_scoped_acquire locked;
            delete held;
          }};
}

py::list arguments_of(const OpCall& call) {
  py::list list;
  size_t tensor = 0;
  auto next = [&]() -> py::object {
    auto& form = call.inputs[tensor++];
    return form.defined ? py::cast(form) : py::none();
  };
  for (size_t i = 0; i < call.args.size(); ++i) {
    auto& type = call.schema.arguments()[i].type();
    if (is_tensor_type(type)) {
      list.append(next());
    } else if (is_list_of_tensors(type) && call.args[i].isList()) {
      py::list forms;
      for (size_t n = call.args[i].toListRef().size(); n > 0; --n) forms.append(next());
      list.append(forms);
    } else {
      list.append(value_from(call.args[i], call.schema.arguments()[i]));
    }
  }
  return list;
}

Placements placements_from(const py::handle& list) {
  Placements placements;
  for (auto item : list.cast<py::sequence>()) placements.push_back(placement_from(item));
  return placements;
}

}  // namespace intarsia::python
