#include "intarsia/watch/watched_line.h"

#include <utility>

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

std::string names_in_key(const std::vector<int64_t>& ranks, const std::string& key) {
  return c10::str(c10::Join(",", ranks), "/", key);
}

}  // namespace

WatchedLine::WatchedLine(std::vector<int64_t> all_ranks, int64_t position, std::chrono::milliseconds timeout,
                         std::string carrier, c10::intrusive_ptr<c10d::Store> store, const std::string& key,
                         bool levels)
    : ranks(std::move(all_ranks)),
      position(position),
      timeout(timeout),
      carrier(std::move(carrier)),
      levels(levels),
      failures_(store, "interrupted/" + names_in_key(ranks, key)),
      board_(store, names_in_key(ranks, key), ranks, position),
      recorded_(recorded_line(rank(), ranks, this->carrier)) {}

WatchedLine::WatchedLine(std::shared_ptr<WatchedLine> larger, int64_t begin, int64_t end, std::string carrier)
    : ranks(larger->ranks.begin() + begin, larger->ranks.begin() + end),
      position(larger->position - begin),
      timeout(larger->timeout),
      carrier(std::move(carrier)),
      levels(true),
      larger_(std::move(larger)),
      failures_(nullptr, {}),
      board_(nullptr, {}, ranks, position),
      recorded_(nullptr) {}

void WatchedLine::number(Collective& call, bool waits) {
  std::lock_guard lock(mutex_);
  call.number = next_number_++;
  if (!larger_) begin_entry(recorded_, call, waits);
  history_.add(call);
}

void WatchedLine::interrupt() {
  error.set(kWasInterrupted);
  failures().raise(rank());
}

History WatchedLine::history() const {
  std::lock_guard lock(mutex_);
  return history_.tail(kCompared);
}

std::string WatchedLine::compare(const Collective& call, const std::vector<int64_t>& awaited) const {
  if (!larger_) return board_.compare(history(), call, levels ? awaited : std::vector<int64_t>());
  auto calls = larger_->history();
  auto* whole = calls.find(*call.whole);
  return whole ? larger_->board_.compare(calls, *whole, awaited) : "";
}

std::string WatchedLine::compare_with(int64_t member, const Collective& call) const {
  return larger_ ? compare(call, {}) : board_.compare_with(member, history(), call);
}

std::vector<int64_t> WatchedLine::behind(const std::vector<int64_t>& ranks, const Collective& call) const {
  return levels ? board().behind(ranks, call.whole.value_or(call.number)) : ranks;
}

}  // namespace intarsia
