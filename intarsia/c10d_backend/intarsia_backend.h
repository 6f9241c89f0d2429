#pragma once
// Our engines as a backend of c10d, for programs that know nothing of distributed tensors.

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
  std::vector<int64_t> ranks;     // of the members in the program's world, in the order of the group; empty: 0, 1, ...
  int64_t world_size = 0;         // 0: the highest of these and one
  std::string engine;             // auto, gloo, shm, mpi; empty: INTARSIA_ENGINE, else auto
  std::string interface;          // for gloo; empty: as init() reads it
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of every wait
};

// A backend of `size` ranks, for c10d::ProcessGroup::setBackend or alone. All of them call it, with a store for this
// group alone, and it returns when all have arrived. It has all that gloo has: collectives run on the engine, in the
// order of the group, with any dtype, uneven lists and tensors that are not contiguous; messages between two ranks,
// sparse tensors and monitored barriers are gloo's. A collective that others run differently is an error that names
// both sides.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               BackendOptions options = {});

}  // namespace intarsia
