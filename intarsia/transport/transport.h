#pragma once
// The interface of transports: a transport connects the ranks of one line of a real job, or leaves that to the next
// one. docs/adding_a_transport.md goes through one.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/group.h"
#include "intarsia/watch/watched_line.h"

namespace intarsia {

// A line of ranks that needs a connection, as one of its members sees it.
struct LineRequest {
  std::vector<int64_t> ranks;                             // of the world, in the order of the line
  int64_t position;                                       // our own
  std::chrono::milliseconds timeout;                      // of every wait
  std::string name;                                       // of the line, unique in the job
  c10::intrusive_ptr<c10d::Store> store;                  // for this line alone; null if the job has none
  c10::intrusive_ptr<c10d::Store> board_store = nullptr;  // the job's, for boards; never used for waits; null: none
  c10::intrusive_ptr<c10d::Backend> group = nullptr;  // an existing process group that connects the ranks; null: none
  std::vector<int> peers = {};                        // the ranks as that group numbers them
  std::string instance = {};  // distinguishes lines of the same ranks: the uid of the group that this line replaces

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  int64_t rank() const { return ranks[position]; }

  // What the members of a connected line know of each other, whatever carries its bytes. `uid` keeps lines of the same
  // ranks over one carrier apart; `levels`: see WatchedLine.
  std::shared_ptr<WatchedLine> watched(const std::string& carrier, const std::string& uid, bool levels = false) const;
  // The board of those who have not connected yet; knows nothing where the job has no store.
  FailureBoard failure_board(const std::string& kind) const;
};

std::string name_of_ranks(const std::vector<int64_t>& ranks);  // 0,1,2: for keys of stores

struct Connection {
  std::shared_ptr<const Group> group;  // null: this transport cannot carry the line
  std::string why_not = {};            // "do not share memory: rank 1 is on another host"
};

// One object per job, used by several threads at once.
class Transport {
 public:
  virtual ~Transport() = default;

  // All members of the line call it together; either all get a group, or none does.
  virtual Connection connect(const LineRequest& line) const = 0;
};

}  // namespace intarsia
