#pragma once
// Whether ranks share a host is found out by trying.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/shm/segment.h"

namespace c10d {
class Store;
}

namespace intarsia {

// Another process of this host, which may end.
class Process {
 public:
  Process() = default;  // none: never ends
  explicit Process(int64_t pid);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  bool ended() const;
  bool stopped() const;  // by a signal or a debugger

 private:
  int64_t pid_ = 0;
  int fd_ = -1;
  bool gone_ = false;  // before we could look
};

struct Trial {
  std::shared_ptr<Segment> segment;  // null: the ranks do not share memory
  std::vector<Process> processes;    // of the members; ours is none
  std::string why_not;               // rank 1 is on another host
  std::vector<std::string> hosts;    // of the members, by name
};

// Equal for ranks that may share memory: it is tried only where they are.
std::string host_name(int64_t rank);

// All `ranks` call it, with a store for this alone, and all get the same answer: the first makes memory and says where, the
// others try to map it and write into it.
Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout);

}  // namespace intarsia
