#include "intarsia/tensor/policy.h"
#include "bindings.h"
#include "intarsia/comm/implicit_moves.h"
#include "intarsia/dispatch/factory_scope.h"
#include "intarsia/propagate/guide.h"
#include "managed_scope.h"

namespace intarsia::python {
namespace {

// The scope of a function that was called with these tensors.
struct InsideFunction {
  explicit InsideFunction(const GivenTensors& tensors) : scope(given(tensors)) {}
  static intarsia::GivenTensors given(const GivenTensors& tensors) {
    intarsia::GivenTensors result;
    for (auto& tensor : tensors) result.see(tensor);
    return result;
  }
  FactoryScope scope;
};

}  // namespace

void bind_policies(py::module_& module) {
  py::enum_<PlainTensors>(module, "PlainTensors")
      .value("error", PlainTensors::error)
      .value("replicate", PlainTensors::replicate)
      .value("verify", PlainTensors::verify);
  bind_scope<PlainTensorScope, PlainTensors>(module, "PlainTensorScope",
                                             "What happens to plain tensors that meet distributed ones.");
  py::enum_<ImplicitMoves>(module, "ImplicitMoves")
      .value("allow", ImplicitMoves::allow)
      .value("warn", ImplicitMoves::warn)
      .value("error", ImplicitMoves::error);
  bind_scope<ImplicitMovesScope, ImplicitMoves, bool>(module, "ImplicitMovesScope",
                                                      "What happens when an op has to move its tensors by itself.");
  bind_scope<StrictScope, bool>(module, "StrictScope", "Ops without a rule are errors inside.");
  py::enum_<PendingWrites>(module, "PendingWrites")
      .value("settle", PendingWrites::settle)
      .value("error", PendingWrites::error);
  module.def("set_pending_writes", &set_pending_writes);
  bind_scope<InsideFunction, GivenTensors>(
      module, "FactoryScope",
      "What a function that is called with these tensors makes from nothing is replicated on their mesh.");
  bind_scope<UnguidedScope>(module, "UnguidedScope", "The guide is not asked inside.");
  bind_scope<LocalErrorScope, bool>(module, "LocalErrorScope",
                                    "A wrong value is an error on the rank that holds it only.");
}

}  // namespace intarsia::python
