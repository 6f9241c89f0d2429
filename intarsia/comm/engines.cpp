#include "intarsia/comm/engines.h"

#include <stdlib.h>

#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/mpi/mpi.h"

namespace intarsia {
namespace {

constexpr auto kAuto = "auto";

std::vector<EngineKind> kinds() {
  return {{kAuto, &make_auto_engine}, {"gloo", &make_gloo_engine}, {"mpi", mpi_maker()}, {"shm", &make_shm_engine}};
}

std::string names(bool built_in) {
  std::string text;
  for (auto& kind : kinds()) {
    if ((kind.make != nullptr) == built_in) text.append(text.empty() ? "" : ", ").append(kind.name);
  }
  return text;
}

}  // namespace

EngineKind choose_engine(const std::string& name) {
  auto* variable = getenv("INTARSIA_ENGINE");
  bool read = name.empty() && variable && *variable;
  auto wanted = !name.empty() ? name : read ? variable : kAuto;
  auto* source = read ? " (INTARSIA_ENGINE)" : "";
  for (auto& kind : kinds()) {
    if (wanted != kind.name) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(kind.make, "[init] the engine \"", wanted, "\"", source,
                                " is not built into this library. Built in: ", names(true), ".");
    return kind;
  }
  auto missing = names(false);
  TORCH_CHECK_VALUE(false, "[init] there is no engine \"", wanted, "\"", source, ". Known: ", names(true),
                    missing.empty() ? "" : "; not built in: " + missing, ".");
}

}  // namespace intarsia
