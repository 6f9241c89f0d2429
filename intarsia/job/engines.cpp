#include "intarsia/job/engines.h"

#include <stdlib.h>

#include <map>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/launch/mpi_plugin.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/launch/secret.h"
#include "intarsia/transport/gloo/gloo_process_groups.h"
#include "intarsia/transport/gloo/gloo_transport.h"
#include "intarsia/transport/mpi/mpi_transport.h"
#include "intarsia/transport/shm/shm_transport.h"
#include "intarsia/transport/two_level/two_level_transport.h"

namespace intarsia {
namespace {

constexpr auto kAuto = "auto";

// INTARSIA_DIRECT=0: process groups use their backend's collectives.
bool direct_messages() {
  auto* text = getenv("INTARSIA_DIRECT");
  return !text || std::string(text) != "0";
}

using Gloo = std::shared_ptr<const GlooTransport>;

// Two levels use direct messages between the hosts.
Transports auto_transports(const Job&, const Gloo& gloo) {
  if (!direct_messages()) return {make_shm_transport(), gloo};
  return {make_shm_transport(), make_two_level_transport(gloo), gloo};
}
Transports gloo_transports(const Job&, const Gloo& gloo) { return {gloo}; }
Transports shm_transports(const Job&, const Gloo&) { return {make_shm_transport()}; }
Transports mpi_transports(const Job& job, const Gloo&) { return {make_mpi_transport(job.rank, job.size, job.mpi)}; }

struct Table {
  std::mutex mutex;
  std::vector<EngineKind> kinds = {
      {kAuto, "shm and gloo", &auto_transports},
      {"gloo", "gloo", &gloo_transports},
      {"mpi", "mpi", &mpi_transports, [] { mpi_plugin(); }},
      {"shm", "shm", &shm_transports},
  };
};
Table& table() {
  static auto* instance = new Table;
  return *instance;
}

std::vector<EngineKind> kinds() {
  std::lock_guard lock(table().mutex);
  return table().kinds;
}

std::string names() {
  std::string text;
  for (auto& kind : kinds()) text.append(text.empty() ? "" : ", ").append(kind.name);
  return text;
}

std::string engine_key(int64_t rank) { return "engine/" + std::to_string(rank); }

}  // namespace

std::unique_ptr<JobEngine> EngineKind::operator()(const Job& job) const {
  auto gloo = std::make_shared<GlooTransport>(job.interface, direct_messages());
  return std::make_unique<JobEngine>(job.rank, job.size, job.store, job.timeout, name, carriers, transports(job, gloo),
                                     gloo);
}

void add_engine(const EngineKind& kind) {
  std::lock_guard lock(table().mutex);
  table().kinds.push_back(kind);
}

EngineKind choose_engine(const std::string& name) {
  auto* variable = getenv("INTARSIA_ENGINE");
  bool read = name.empty() && variable && *variable;
  auto wanted = !name.empty() ? name : read ? variable : kAuto;
  auto* source = read ? " (INTARSIA_ENGINE)" : "";
  for (auto& kind : kinds()) {
    if (wanted != kind.name) continue;
    if (kind.check) kind.check();
    return kind;
  }
  TORCH_CHECK_VALUE(false, "[init] there is no engine \"", wanted, "\"", source, ". Known: ", names(), ".");
}

// Ranks that use different engines would wait for each other in different places.
std::unique_ptr<JobEngine> make_together(const char* where, const EngineKind& kind, const Job& job,
                                         const std::vector<int64_t>& ranks) {
  auto asked =
      kind.name + std::string(job_secret().empty() ? "" : " with a secret");  // ranks without one would skip the proof
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

c10::intrusive_ptr<c10d::Backend> make_gloo_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                          int size, const std::string& interface,
                                                          std::chrono::milliseconds timeout) {
  return GlooMaker(interface, timeout).make(store, rank, size);
}

}  // namespace intarsia
