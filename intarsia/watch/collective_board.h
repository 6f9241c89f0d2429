#pragma once
// The collective board: waiting ranks post the collective they wait in, which reveals ranks in different collectives.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/collective.h"

namespace c10d {
class Store;
}

namespace intarsia {

// Entries of the ranks of one line in the store of the job. See Note [A message knows what it is].
class CollectiveBoard {
 public:
  // Without a store nothing is ever found.
  CollectiveBoard(c10::intrusive_ptr<c10d::Store> store, std::string line, std::vector<int64_t> ranks,
                  int64_t position);
  ~CollectiveBoard();
  bool exists() const { return store_ != nullptr; }

  // Posts that we wait in `call`, and reads what the others wait in. If two ranks differ at the same number, the
  // program is wrong: the text shows both sides; otherwise it is empty. `awaited`: the ranks for which we wait, if
  // others may wait for us because of them.
  std::string compare(const History& history, const Collective& call, const std::vector<int64_t>& awaited = {}) const;

  // We no longer wait: withdraws the posted `awaited`.
  void settle() const;

  // We wait for `ranks` in collective `number`, and they in turn for others: returns those at the end of the chain, as
  // far as they have posted it.
  std::vector<int64_t> behind(const std::vector<int64_t>& ranks, uint64_t number) const;

  // What those members wait in, as far as they have posted it, on any line: "; rank 1 was last seen waiting in ...".
  std::string last_seen(const std::vector<int64_t>& ranks) const;

  // The same as compare with the entry of one member, who may have left because of us; posts nothing.
  std::string compare_with(int64_t member, const History& history, const Collective& call) const;

  // Posts that we take no part any more, where nothing else says so.
  void leave() const;
  bool has_left(int64_t member) const;

 private:
  std::string key(int64_t rank) const;
  std::string farewell_key(int64_t rank) const;
  std::string awaited_key(int64_t rank) const;
  std::string read(int64_t member, const History& history, const Collective& call) const;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string line_;
  std::vector<int64_t> ranks_;
  int64_t position_;
  mutable std::atomic<bool> awaits_{false};  // whether we have posted so
};

// When a wait looks at the board: after a second, then at growing intervals.
class BoardTimes {
 public:
  bool due();

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::seconds pause_{1};
  Clock::time_point next_ = Clock::now() + pause_;
};

// The error text for two ranks in different collectives.
std::string mismatch_text(const Collective& ours, int64_t rank, int64_t other_rank, const std::string& other);

}  // namespace intarsia
