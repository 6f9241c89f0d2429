#pragma once
// Calls of ops as Python functions see them that the core asks: rules and the guide.

#include <memory>

#include "bindings.h"
#include "intarsia/rules/rule.h"

namespace intarsia::python {

// A Python function that the core may drop on a thread that does not hold the GIL.
std::shared_ptr<py::function> shared(py::function function);

// The arguments of a call: tensors are their forms, and None where they are undefined.
py::list arguments_of(const OpCall& call);

Placements placements_from(const py::handle& list);

}  // namespace intarsia::python
