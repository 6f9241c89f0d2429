#include "intarsia/watch/collective_board.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {
namespace {

constexpr size_t kTold = 16;  // collectives in a note: the one waited in, and those before it

// What a rank posted: the number it waits in, its last collectives, what it sends to and awaits of each member.
struct Note {
  struct Entry {
    uint64_t fingerprint;
    std::string text;
  };
  uint64_t number = 0;
  std::map<uint64_t, Entry> calls;
  std::vector<CallLog::Line> log;  // the calls before the collective that it waits in
  std::vector<int64_t> sends, receives;
};

std::vector<CallLog::Line> log_of(const Collective& call) {
  return call.log ? call.log->lines(call.calls) : std::vector<CallLog::Line>();
}

std::string write_note(const History& history, const Collective& call) {
  std::ostringstream out;
  out << call.number << "\n" << call.sends.size() << " " << call.receives.size();
  for (auto count : call.sends) out << " " << count;
  for (auto count : call.receives) out << " " << count;
  out << "\n";
  auto log = log_of(call);
  out << log.size() << "\n";
  for (auto& line : log) out << line.number << " " << line.hash << " " << line.text << "\n";
  for (auto* one : history.last(kTold)) out << one->number << " " << one->fingerprint() << " " << one->text() << "\n";
  return out.str();
}

Note read_note(const std::string& text) {
  Note note;
  std::istringstream in(text);
  size_t sends = 0, receives = 0;
  in >> note.number >> sends >> receives;
  note.sends.resize(sends);
  note.receives.resize(receives);
  for (auto& count : note.sends) in >> count;
  for (auto& count : note.receives) in >> count;
  size_t log = 0;
  in >> log;
  for (CallLog::Line line; log > 0 && in >> line.number >> line.hash && in.get() && std::getline(in, line.text); --log)
    note.log.push_back(line);
  uint64_t number = 0;
  Note::Entry entry;
  while (in >> number >> entry.fingerprint && in.get() && std::getline(in, entry.text)) note.calls[number] = entry;
  return note;
}

std::string write_awaited(uint64_t number, const std::vector<int64_t>& ranks) {
  std::ostringstream out;
  out << number;
  for (auto rank : ranks) out << " " << rank;
  return out.str();
}

// Empty, if that is a collective that we have not reached yet.
std::vector<int64_t> read_awaited(const std::string& text, uint64_t number) {
  std::istringstream in(text);
  uint64_t then = 0;
  std::vector<int64_t> ranks;
  in >> then;
  for (int64_t rank = 0; then <= number && in >> rank;) ranks.push_back(rank);
  return ranks;
}

std::string last_key(int64_t rank) { return "waiting/" + std::to_string(rank); }

// Parts of one all_to_all that do not match.
std::string uneven_parts(const Collective& call, const Note& note, int64_t me, int64_t other) {
  if (note.number != call.number || call.sends.empty() || note.sends.empty()) return "";
  if (call.sends[other] != note.receives[me]) {
    return c10::str("awaits ", note.receives[me], " of us, to which we send ", call.sends[other]);
  }
  if (call.receives[other] != note.sends[me]) {
    return c10::str("sends us ", note.sends[me], ", of which we await ", call.receives[other]);
  }
  return "";
}

}  // namespace

CollectiveBoard::CollectiveBoard(c10::intrusive_ptr<c10d::Store> store, std::string line, std::vector<int64_t> ranks,
                                 int64_t position)
    : store_(std::move(store)), line_(std::move(line)), ranks_(std::move(ranks)), position_(position) {}

CollectiveBoard::~CollectiveBoard() = default;

std::string CollectiveBoard::key(int64_t rank) const { return c10::str("waits/", line_, "/", rank); }

std::string CollectiveBoard::farewell_key(int64_t rank) const { return c10::str("left/", line_, "/", rank); }

std::string CollectiveBoard::awaited_key(int64_t rank) const { return c10::str("awaits/", line_, "/", rank); }

std::string CollectiveBoard::read(int64_t member, const History& history, const Collective& call) const {
  auto me = ranks_[position_], other = ranks_[member];
  if (!store_->check({key(other)})) return "";
  auto note = read_note(store_->get_to_str(key(other)));
  for (auto& [number, theirs] : note.calls) {  // the first that differs is the cause of all later ones
    auto* ours = history.find(number);
    if (!ours || theirs.fingerprint == ours->fingerprint()) continue;
    return mismatch_text(*ours, me, other, theirs.text) + first_difference(log_of(call), me, note.log, other);
  }
  auto uneven = uneven_parts(call, note, position_, member);
  return uneven.empty() ? "" : mismatch_text(call, me, other, c10::str(note.calls[call.number].text, ", and ", uneven));
}

// A store that does not answer means nothing: its server may have ended normally before us.
std::string CollectiveBoard::compare(const History& history, const Collective& call,
                                     const std::vector<int64_t>& awaited) const {
  if (!store_) return "";
  try {
    if (!awaited.empty()) {
      awaits_ = true;
      store_->set(awaited_key(ranks_[position_]), write_awaited(call.number, awaited));
    }
    store_->set(key(ranks_[position_]), write_note(history, call));
    store_->set(last_key(ranks_[position_]),
                c10::str(call.text(), " on axis \"", call.axis, "\" (ranks ", c10::ArrayRef<int64_t>(ranks_), ")"));
    for (size_t j = 0; j < ranks_.size(); ++j) {
      auto text = static_cast<int64_t>(j) == position_ ? "" : read(j, history, call);
      if (!text.empty()) return text;
    }
  } catch (const std::exception&) {
  }
  return "";
}

void CollectiveBoard::settle() const {
  if (!awaits_.load(std::memory_order_relaxed) || !awaits_.exchange(false)) return;
  try {
    store_->set(awaited_key(ranks_[position_]), std::string("0"));
  } catch (const std::exception&) {
  }
}

std::vector<int64_t> CollectiveBoard::behind(const std::vector<int64_t>& ranks, uint64_t number) const {
  std::set<int64_t> seen{ranks_[position_]}, ends;
  auto next = ranks;
  try {
    while (store_ && !next.empty()) {
      auto rank = next.back();
      next.pop_back();
      if (!seen.insert(rank).second) continue;
      auto key = awaited_key(rank);
      auto awaited = store_->check({key}) ? read_awaited(store_->get_to_str(key), number) : std::vector<int64_t>();
      std::erase_if(awaited, [&](int64_t other) { return seen.count(other); });
      if (awaited.empty()) ends.insert(rank);
      next.insert(next.end(), awaited.begin(), awaited.end());
    }
  } catch (const std::exception&) {
  }
  return ends.empty() ? ranks : std::vector<int64_t>(ends.begin(), ends.end());
}

std::string CollectiveBoard::last_seen(const std::vector<int64_t>& ranks) const {
  std::string text;
  try {
    for (auto rank : ranks) {
      if (!store_ || !store_->check({last_key(rank)})) continue;
      text += c10::str("; rank ", rank, " was last seen waiting in ", store_->get_to_str(last_key(rank)));
    }
  } catch (const std::exception&) {
  }
  return text;
}

std::string CollectiveBoard::compare_with(int64_t member, const History& history, const Collective& call) const {
  try {
    return store_ ? read(member, history, call) : "";
  } catch (const std::exception&) {
    return "";
  }
}

void CollectiveBoard::leave() const {
  try {
    if (store_) store_->set(farewell_key(ranks_[position_]), std::string("1"));
  } catch (const std::exception&) {
  }
}

bool CollectiveBoard::has_left(int64_t member) const {
  try {
    return store_ && store_->check({farewell_key(ranks_[member])});
  } catch (const std::exception&) {
    return false;
  }
}

bool BoardTimes::due() {
  if (Clock::now() < next_) return false;
  pause_ = std::min(2 * pause_, std::chrono::seconds(60));
  next_ = Clock::now() + pause_;
  return true;
}

std::string mismatch_text(const Collective& ours, int64_t rank, int64_t other_rank, const std::string& other) {
  auto mine = ours.text();
  auto* alike = mine == other ? ", of another tensor or after other calls" : "";
  return c10::str("collective ", ours.number, " on axis \"", ours.axis, "\": rank ", rank, " is in ", mine, ", rank ",
                  other_rank, " in ", other, alike,
                  ". All ranks of a line must run the same collectives in the same order.");
}

}  // namespace intarsia
