#pragma once
// Declarations that the files of the extension share. Each file binds one header of the core and holds no logic.

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/autograd/python_variable.h>

#include "intarsia/core/layout.h"

namespace intarsia::python {

namespace py = pybind11;

// A tensor from Python. An object that only claims to be a tensor, such as a mock, is rejected: LibTorch would read it
// as one.
struct GivenTensor {
  at::Tensor value;
  operator const at::Tensor&() const { return value; }
};
using GivenTensors = std::vector<GivenTensor>;

inline bool is_tensor(py::handle object) {
  return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}
inline std::vector<at::Tensor> values_of_given(const GivenTensors& given) { return {given.begin(), given.end()}; }

// Placements from Python: a sequence of PyTorch's placement objects.
struct GivenPlacements {
  Placements value;
};

// Converts PyTorch's placement objects, in both directions. The tuple of a layout is made once.
Placement placement_from(py::handle object);
py::object placement_to(const Placement& placement);
py::tuple placements_of_layout(const Layout& layout);

void bind_worlds(py::module_& module);
void bind_meshes(py::module_& module);
void bind_tensors(py::module_& module);
void bind_per_rank(py::module_& module);
void bind_over_ranks(py::module_& module);
void bind_policies(py::module_& module);
void bind_random(py::module_& module);
void bind_recorder(py::module_& module);
void bind_pictures(py::module_& module);
void bind_rules(py::module_& module);
void bind_guide(py::module_& module);
void bind_data_parallel(py::module_& module);
void bind_checkpoints(py::module_& module);
void bind_backends(py::module_& module);

}  // namespace intarsia::python

namespace pybind11::detail {

template <>
struct type_caster<intarsia::python::GivenTensor> {
  PYBIND11_TYPE_CASTER(intarsia::python::GivenTensor, const_name("torch.Tensor"));
  bool load(handle source, bool) {
    if (!intarsia::python::is_tensor(source)) return false;
    value.value = THPVariable_Unpack(source.ptr());
    return true;
  }
};

template <>
struct type_caster<intarsia::python::GivenPlacements> {
  PYBIND11_TYPE_CASTER(intarsia::python::GivenPlacements, const_name("Sequence[Placement]"));
  bool load(handle source, bool) {
    if (!PySequence_Check(source.ptr())) return false;
    for (auto item : reinterpret_borrow<sequence>(source)) {
      value.value.push_back(intarsia::python::placement_from(item));
    }
    return true;
  }
};

}  // namespace pybind11::detail
