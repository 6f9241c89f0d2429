#pragma once
// Maps the memory that the ranks of a line share, where they share a host.

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

struct Trial {
  std::shared_ptr<Segment> segment;  // null: the ranks do not share memory
  std::vector<Process> processes;    // of the members; ours is none
  std::string why_not;               // rank 1 is on another host
};

// All `ranks` call it, with a store for this alone, and all get the same answer: the first makes memory and says where,
// the others try to map it and write into it.
Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout);

}  // namespace intarsia
