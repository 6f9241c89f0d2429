#include "intarsia/comm/engines.h"

#include <stdlib.h>

#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/mpi/load.h"
#include "intarsia/comm/mpi/mpi.h"

namespace intarsia {
namespace {

constexpr auto kAuto = "auto";

std::vector<EngineKind> kinds() {
  return {{kAuto, &make_auto_engine}, {"gloo", &make_gloo_engine}, {"mpi", &make_mpi_engine}, {"shm", &make_shm_engine}};
}

std::string names() {
  std::string text;
  for (auto& kind : kinds()) text.append(text.empty() ? "" : ", ").append(kind.name);
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
    if (kind.make == &make_mpi_engine) mpi_plugin();
    return kind;
  }
  TORCH_CHECK_VALUE(false, "[init] there is no engine \"", wanted, "\"", source, ". Known: ", names(), ".");
}

}  // namespace intarsia
