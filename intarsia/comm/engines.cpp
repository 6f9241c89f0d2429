#include "intarsia/comm/engines.h"

#include <stdlib.h>

#include <string_view>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/mpi/mpi.h"
#include "intarsia/comm/shm/shm.h"

namespace intarsia {
namespace {

constexpr auto kAuto = "auto";

struct Kind {
  std::string_view name;
  MakeEngine make;  // null: not built in
};

std::vector<Kind> kinds() {
  return {{kAuto, &make_c10d_engine}, {"gloo", &make_c10d_engine}, {"mpi", mpi_maker()}, {"shm", shm_maker()}};
}

std::string names(bool built_in) {
  std::string text;
  for (auto& kind : kinds()) {
    if ((kind.make != nullptr) == built_in) text.append(text.empty() ? "" : ", ").append(kind.name);
  }
  return text;
}

}  // namespace

MakeEngine choose_engine(const std::string& name) {
  auto* variable = getenv("INTARSIA_ENGINE");
  bool read = name.empty() && variable && *variable;
  auto wanted = !name.empty() ? name : read ? variable : kAuto;
  auto* source = read ? " (INTARSIA_ENGINE)" : "";
  for (auto& kind : kinds()) {
    if (kind.name != wanted) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(kind.make, "[init] the engine \"", wanted, "\"", source,
                                " is not built into this library. Built in: ", names(true), ".");
    return kind.make;
  }
  auto missing = names(false);
  TORCH_CHECK_VALUE(false, "[init] there is no engine \"", wanted, "\"", source, ". Known: ", names(true),
                    missing.empty() ? "" : "; not built in: " + missing, ".");
}

}  // namespace intarsia
