#include "intarsia/comm/engines.h"

#include <stdlib.h>

#include <map>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/c10d/c10d.h"
#include "intarsia/comm/launch/rendezvous.h"
#include "intarsia/comm/launch/secret.h"
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

std::string engine_key(int64_t rank) { return "engine/" + std::to_string(rank); }

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

// Ranks that ask for different engines would wait for each other in different places.
std::unique_ptr<Engine> make_together(const char* where, const EngineKind& kind, const Job& job, const std::vector<int64_t>& ranks) {
  auto asked = kind.name + std::string(job_secret().empty() ? "" : " with a secret");  // ranks without one would take no part in proofs
  job.store->set(engine_key(job.rank), asked);
  arrive(where, *job.store, job.rank, ranks, job.timeout);
  std::map<std::string, std::vector<int64_t>> asking;
  for (auto rank : ranks) asking[rank == job.rank ? asked : job.store->get_to_str(engine_key(rank))].push_back(rank);
  std::string text;
  for (auto& [engine, askers] : asking) {
    text += c10::str(text.empty() ? "" : ", ", engine, " on ranks ", c10::ArrayRef<int64_t>(askers));
  }
  TORCH_CHECK_VALUE(asking.size() == 1, "[", where, "] the ranks ask for different engines: ", text,
                    ". Set INTARSIA_ENGINE or InitOptions::engine, and INTARSIA_SECRET, to the same on all.");
  return kind(job);
}

}  // namespace intarsia
