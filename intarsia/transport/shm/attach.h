#pragma once
// Maps the memory that the ranks of a line share, if they are on one host.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/launch/process.h"
#include "intarsia/transport/shm/segment.h"

namespace c10d {
class Store;
}

namespace intarsia {

// The result of an attempt to share memory.
struct Trial {
  std::shared_ptr<Segment> segment;  // null: the ranks do not share memory
  std::vector<Process> processes;    // of the members; ours is empty
  std::string why_not;               // rank 1 is on another host
};

// All `ranks` call it, with a store that only this call uses, and all get the same answer: the first rank creates the
// memory and publishes its path, the others try to map it and write into it.
Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout);

}  // namespace intarsia
