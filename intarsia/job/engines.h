#pragma once
// The engines of real jobs by name, each a list of transports to try in order. This is the one table of transports.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/job/job_engine.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

class GlooTransport;
class MpiPort;

// The input of an engine: our rank of the job and how its ranks find each other.
struct Job {
  int64_t rank;
  int64_t size;
  c10::intrusive_ptr<c10d::Store> store;   // has keys of this job only; null: none, and groups are adopted
  std::string interface;                   // network interface or address of this host; empty: the transport's choice
  std::chrono::milliseconds timeout;       // of every wait
  std::shared_ptr<MpiPort> mpi = nullptr;  // the ranks, if MPI connects them
};

// An engine: its name, and the transports that its lines try, in order.
struct EngineKind {
  const char* name;
  const char* carriers;  // "shm and gloo": for texts
  Transports (*transports)(const Job& job,
                           const std::shared_ptr<const GlooTransport>& gloo);  // `gloo` also carries adopted groups
  void (*check)() = nullptr;  // throws if the engine cannot be used in this process

  std::unique_ptr<JobEngine> operator()(const Job& job) const;
};

// Adds an engine to the table, before anyone joins a job by its name.
void add_engine(const EngineKind& kind);

// The engine called `name`: auto (shm for lines of ranks that share a host, else gloo), gloo, mpi or shm. If empty,
// INTARSIA_ENGINE decides, else it is auto. Called before any rank waits for another, so that an unknown name, or an
// engine whose plugin is missing, is an error on every rank at once.
EngineKind choose_engine(const std::string& name);

// Makes the engine of `job` once all `ranks`, which call this together, have confirmed that they use the same one; else
// raises an error of `where` on every rank.
std::unique_ptr<JobEngine> make_together(const char* where, const EngineKind& kind, const Job& job,
                                         const std::vector<int64_t>& ranks);

// A process group over gloo of `size` ranks, which find each other in `store`, for what engines lack: messages between
// two ranks.
c10::intrusive_ptr<c10d::Backend> make_gloo_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                          int size, const std::string& interface,
                                                          std::chrono::milliseconds timeout);

}  // namespace intarsia
