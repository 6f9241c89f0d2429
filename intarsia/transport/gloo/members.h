#pragma once
// The ranks of one line of a real job, as the rank of this process sees them.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/watch/collective_board.h"
#include "intarsia/watch/failure_board.h"

namespace c10d {
class Backend;
}

namespace intarsia {

// The members of a line and the c10d backend that connects them. A line of one rank needs no backend.
struct Members {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::vector<int64_t> ranks;  // of the world, in the order of the line
  std::vector<int> peers;      // the same, as the backend numbers them
  int64_t position;            // our own position in both
  std::chrono::milliseconds timeout;
  std::shared_ptr<FailureBoard> failures = nullptr;  // null if there is no store
  std::shared_ptr<CollectiveBoard> board = nullptr;  // null if there is no backend

  int64_t size() const { return ranks.size(); }
  bool whole() const;  // whether these are all ranks of the backend, in its order
  bool gloo() const;

  // The rank that was interrupted, as the end of an error text; empty if none was.
  std::string interrupted() const;
  // The members to which there is no connection any more; `member` is known to be one.
  std::vector<int64_t> unconnected(int64_t member) const;
  // We were interrupted: posts it for the others, and closes the connections, so that no side waits for what will not
  // Call this when we were interrupted: posts it for the others, and closes the connections, so that no side waits in
  // vain.
  void give_up() const;
};

}  // namespace intarsia
