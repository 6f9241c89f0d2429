// The extension module intarsia._core.

#include <exception>

#include <torch/csrc/Exceptions.h>

#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  namespace python = intarsia::python;
  module.doc() = "The C++ core of Intarsia.";
  // Maps errors of the core to the Python types that PyTorch uses.
  pybind11::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(std::current_exception());
    }
  });
  python::bind_worlds(module);
  python::bind_meshes(module);
  python::bind_tensors(module);
  python::bind_per_rank(module);
  python::bind_over_ranks(module);
  python::bind_policies(module);
  python::bind_random(module);
  python::bind_recorder(module);
  python::bind_pictures(module);
  python::bind_rules(module);
  python::bind_guide(module);
  python::bind_data_parallel(module);
  python::bind_checkpoints(module);
  python::bind_backends(module);
}
