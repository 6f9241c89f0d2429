#pragma once
// Calls of ops, as the Python functions of rules and of the guide see them.

#include <memory>

#include "bindings.h"
#include "intarsia/rules/rule.h"

namespace intarsia::python {

// A Python function that the core may drop on a thread that does not hold the GIL.
std::shared_ptr<py::function> shared(py::function function);

// The arguments of a call: tensors are replaced by their forms, and None where they are undefined.
py::list arguments_of(const OpCall& call);

// Reads a list of placements from Python.
Placements placements_from(const py::handle& list);

}  // namespace intarsia::python
