#pragma once
// How ranks that wait for each other find out that they run different collectives.

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

// A line of which another one, inside a host, is a part: it knows what all of its ranks wait in.
class LargerLine {
 public:
  virtual ~LargerLine() = default;
  // As Notes, for the collective of which `step` is a part.
  virtual std::string compare(const Collective& step, const std::vector<int64_t>& awaited) const = 0;
  virtual void settle() const = 0;
  virtual std::vector<int64_t> behind(const std::vector<int64_t>& ranks, const Collective& step) const = 0;
  virtual std::string last_seen(const std::vector<int64_t>& ranks) const = 0;
};

// Notes of the ranks of one line in the store of the job. See Note [A message knows what it is].
class CollectiveBoard {
 public:
  // Without a store nothing is ever found.
  CollectiveBoard(c10::intrusive_ptr<c10d::Store> store, std::string line, std::vector<int64_t> ranks, int64_t position);
  ~CollectiveBoard();

  // Tells the others that we wait in `call`, and reads what they wait in. Two that differ at the same number are a mistake of the
  // program, told with both sides; else the text is empty. `awaited`: the ranks for whom we wait, where others may wait for us because
  // of them.
  std::string compare(const History& history, const Collective& call, const std::vector<int64_t>& awaited = {}) const;

  // We wait no longer: takes back what was told of those for whom we waited.
  void settle() const;

  // We wait for `ranks` in collective `number`, and they in turn for others: those at the end, as far as they have told.
  std::vector<int64_t> behind(const std::vector<int64_t>& ranks, uint64_t number) const;

  // Where those members wait, as far as they have told, on whatever line: "; rank 1 was last seen waiting in ...".
  std::string last_seen(const std::vector<int64_t>& ranks) const;

  // The same as compare with the note of one member, who may have left because of us; tells the others nothing.
  std::string compare_with(int64_t member, const History& history, const Collective& call) const;

  // Tells the others that we take no part any more, where nothing else does.
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
  mutable std::atomic<bool> awaits_{false};  // whether others are told so
};

// When a wait looks at the notes: after a second, then ever more rarely.
class BoardTimes {
 public:
  bool due();

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::seconds pause_{1};
  Clock::time_point next_ = Clock::now() + pause_;
};

// The error of two ranks in different collectives.
std::string mismatch_text(const Collective& ours, int64_t rank, int64_t other_rank, const std::string& other);

}  // namespace intarsia
