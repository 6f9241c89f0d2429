#pragma once
// Our engines as a c10d backend, for programs that do not use distributed tensors.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace intarsia {

struct BackendOptions {
  std::string group = "default";  // its name, for errors
  std::vector<int64_t> ranks;     // of the members in the world, in the order of the group; empty: 0, 1, ...
  int64_t world_size = 0;         // 0: one more than the highest of these
  std::string engine;             // auto, gloo, shm, mpi; empty: INTARSIA_ENGINE, else auto
  std::string interface;          // for gloo; empty: as init() reads it
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of every wait
};

// A backend of `size` ranks, for c10d::ProcessGroup::setBackend or alone. All ranks call it, with a store that only
// this group uses, and it returns when all have arrived. It has everything that gloo's backend has: collectives run on
// the engine, in the order of the group, with any dtype, uneven lists and tensors that are not contiguous; messages
// between two ranks, sparse tensors and monitored barriers run on gloo. If ranks call different collectives, the error
// names both calls.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               BackendOptions options = {});

}  // namespace intarsia
