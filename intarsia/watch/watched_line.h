#pragma once
// A line of ranks of a real job as one of its members keeps it, whatever carries its bytes.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "intarsia/comm/collective.h"
#include "intarsia/watch/collective_board.h"
#include "intarsia/watch/failure_board.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/sticky_error.h"

namespace intarsia {

// Who its members are, which collectives this one began, and the boards on which the members post what they know. Safe
// to use from several threads.
class WatchedLine {
 public:
  // `key` names the line on its boards, which are in `store`; nobody waits in it. Without one, boards know nothing.
  // `levels`: its collectives have steps in which some members wait for others, see Note [Two levels].
  WatchedLine(std::vector<int64_t> ranks, int64_t position, std::chrono::milliseconds timeout, std::string carrier,
              c10::intrusive_ptr<c10d::Store> store = nullptr, const std::string& key = {}, bool levels = false);
  // The neighbours of one host on a larger line, whose boards serve both.
  WatchedLine(std::shared_ptr<WatchedLine> larger, int64_t begin, int64_t end, std::string carrier);

  const std::vector<int64_t> ranks;  // of the world, in the order of the line
  const int64_t position;            // our own
  const std::chrono::milliseconds timeout;
  const std::string carrier;
  const bool levels;
  StickyError error;

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  int64_t rank() const { return ranks[position]; }

  // Gives the collective its number on the line and an entry in the flight recorder, and keeps it to be compared.
  // `waits`: as begin_entry.
  void number(Collective& call, bool waits = false);

  // We were interrupted while we waited: the line has failed, and the others find it on the board.
  void interrupt();

  FailureBoard& failures() const { return larger_ ? larger_->failures_ : failures_; }
  const CollectiveBoard& board() const { return larger_ ? larger_->board_ : board_; }

  // As CollectiveBoard; on the larger line for the collective of which `call` is a step.
  std::string compare(const Collective& call, const std::vector<int64_t>& awaited) const;
  // The same with one member alone, where no larger line is asked.
  std::string compare_with(int64_t member, const Collective& call) const;
  std::vector<int64_t> behind(const std::vector<int64_t>& ranks, const Collective& call) const;

 private:
  static constexpr size_t kCompared = 64;  // collectives
  History history() const;

  const std::shared_ptr<WatchedLine> larger_;
  mutable FailureBoard failures_;
  CollectiveBoard board_;
  const RecordedLine* recorded_;
  mutable std::mutex mutex_;  // guards what follows
  uint64_t next_number_ = 0;
  History history_;
};

}  // namespace intarsia
