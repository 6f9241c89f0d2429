#pragma once
// Wraps a scope of the core as a context manager.

#include <functional>
#include <memory>

#include "bindings.h"

namespace intarsia::python {

template <class Scope, class... Args>
class ManagedScope {
 public:
  explicit ManagedScope(Args... args) : make_([args...] { return std::make_unique<Scope>(args...); }) {}
  void enter() { scope_ = make_(); }
  void exit(const py::args&) { scope_.reset(); }
  Scope& get(const char* where) {
    TORCH_CHECK(scope_, "[", where, "] the scope is not open. Enter it with `with`.");
    return *scope_;
  }

 private:
  std::function<std::unique_ptr<Scope>()> make_;
  std::unique_ptr<Scope> scope_;
};

template <class Scope, class... Args>
auto bind_scope(py::module_& module, const char* name, const char* doc) {
  using Managed = ManagedScope<Scope, Args...>;
  return py::class_<Managed>(module, name, doc)
      .def(py::init<Args...>())
      .def("__enter__", &Managed::enter, py::call_guard<py::gil_scoped_release>())
      .def("__exit__", &Managed::exit);
}

}  // namespace intarsia::python
