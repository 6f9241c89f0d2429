#pragma once
// The ranks of one line of a real job and the c10d backend that connects them.

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/watch/watched_line.h"

namespace c10d {
class Backend;
}

namespace intarsia {

// What a group and its collectives share: these may outlive the group. A line of one rank needs no backend.
struct Members {
  Members(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> peers, std::shared_ptr<WatchedLine> line);

  const c10::intrusive_ptr<c10d::Backend> backend;
  const std::vector<int> peers;  // the ranks of the line, as the backend numbers them
  const std::shared_ptr<WatchedLine> line;
  const bool gloo;
  const uint64_t hash;  // keeps lines that share a backend apart

  int64_t size() const { return line->size(); }
  int64_t position() const { return line->position; }
  bool whole() const;  // whether these are all ranks of the backend, in its order

  // Those to whom there is no connection any more; `member` is known to be one.
  std::vector<int64_t> unconnected(int64_t member) const;
  // We were interrupted: posts it for the others, and closes the connections, so that no side waits for what will not
  // come.
  void interrupt() const;
};

constexpr auto kTwoLevels = "shm+gloo";  // what carries a line in two levels

using SharedMembers = std::shared_ptr<const Members>;

}  // namespace intarsia
