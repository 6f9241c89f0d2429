#pragma once
// The engines by name. Everything that joins a job chooses here.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/engine.h"

namespace c10d {
class Store;
}

namespace intarsia {

class MpiPort;

// What an engine is made for: our rank of the job and how its ranks find each other.
struct Job {
  int64_t rank;
  int64_t size;
  c10::intrusive_ptr<c10d::Store> store;  // with keys of this job only; null: none, and groups are adopted
  std::string interface;                  // network interface or address of this host; empty: the engine's choice
  std::chrono::milliseconds timeout;      // of every wait
  std::shared_ptr<MpiPort> mpi = nullptr;  // the ranks, if MPI connects them
};

using MakeEngine = std::unique_ptr<Engine> (*)(const Job& job);

struct EngineKind {
  const char* name;
  MakeEngine make;
  std::unique_ptr<Engine> operator()(const Job& job) const { return make(job); }
};

// The engine called `name`: auto (shm for lines of ranks that share a host, else gloo), gloo, mpi or shm. If empty,
// INTARSIA_ENGINE says which, else it is auto. Asked before anyone waits for anyone, so that a name that does not exist, or an
// engine whose plugin is not there, is an error on every rank at once.
EngineKind choose_engine(const std::string& name);

// The engine of `job` when all `ranks`, which call this together, have said that they ask for the same; else an error of `where`
// on every rank.
std::unique_ptr<Engine> make_together(const char* where, const EngineKind& kind, const Job& job, const std::vector<int64_t>& ranks);

}  // namespace intarsia
