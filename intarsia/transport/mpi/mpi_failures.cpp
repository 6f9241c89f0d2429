// What a wait over MPI does when nothing arrives: it finds out why, and gives up its line.

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/interrupts.h"
#include "intarsia/transport/mpi/mpi_progress_engine.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeToExplain{2000};  // for a rank to post what it does
constexpr size_t kComparedLast = 64;          // collectives

std::vector<int64_t> ranks_of(const MpiEndpoint& side, std::vector<int64_t> members) {
  for (auto& member : members) member = side.ranks[member];
  return members;
}

// Another thread of ours may have found out more.
void check_side(const MpiEndpoint& side) { TORCH_CHECK_WITH(DistBackendError, !side.failed, side.why); }

}  // namespace

void MpiProgressEngine::look_around(MpiTask& task, Watch& watch, Lock& lock) {
  auto& side = *task.side;
  {
    Unlocked unlocked(lock);
    check_interrupts();
  }
  check_side(side);
  bury_abandoned();
  bool due = watch.board.due();
  if (due) compare_boards(side, task.call, {}, lock);
  side.read_farewells();
  for (size_t j = 0; j < side.ranks.size(); ++j) {
    if (side.farewells[j] != MpiFarewell::interrupted) continue;
    fail(side, interrupted_text(side.ranks[j]));
  }
  if (task.finished()) return;
  auto missing = task.missing();
  look_for_gone(side, missing, lock);
  for (auto j : missing) {
    if (!due || !side.board || !side.board->has_left(j) || move_all()) continue;
    fail(side, gone_text({side.ranks[j]}, "it left the line") + task.call.advice());
  }
  watch.next_look = Clock::now() + Watch::kPause;
  if (Clock::now() < watch.begin + side.timeout || missing.empty()) return;
  auto text = late_text(ranks_of(side, missing), side.timeout) + task.call.advice();
  {
    Unlocked unlocked(lock);  // the store may be slow
    if (side.failures) side.failures->tell_why(side.rank(), text);
  }
  check_side(side);
  fail(side, text);
}

// Ranks that failed may have done so because of us.
void MpiProgressEngine::look_for_gone(MpiEndpoint& side, const std::vector<int64_t>& missing, Lock& lock) {
  for (auto j : missing) {
    if (side.farewells[j] != MpiFarewell::failed) continue;
    if (move_all()) return;  // what it did last
    Collective call;
    for (auto& task : under_way_) {
      if (task->side.get() == &side) call = task->call;
    }
    compare_boards(side, call, {}, lock);
    auto rank = side.ranks[j];
    lock.unlock();  // the store may be slow
    auto why = side.failures ? side.failures->why(rank) : "";
    auto first = side.failures && why.empty() ? side.failures->first_gone(rank) : rank;
    lock.lock();
    check_side(side);
    if (!why.empty()) fail(side, why);
    if (first == side.rank()) first = rank;
    auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
    fail(side, gone_text({first}, others + "it failed"));
  }
}

// What the others wait in may explain why nothing moves. `patience`: for those that have not posted it yet.
void MpiProgressEngine::compare_boards(MpiEndpoint& side, Collective call, milliseconds patience, Lock& lock) {
  if (!side.board) return;
  auto history = side.history.tail(kComparedLast);
  lock.unlock();  // the store may be slow
  auto text = ask_patiently(patience, [&] { return side.board->compare(history, call); });
  lock.lock();
  check_side(side);
  if (!text.empty()) fail(side, text);
}

// The head says what the other rank did; its note also says why.
void MpiProgressEngine::explain(MpiEndpoint& side, Lock& lock) {
  auto message = *side.unexpected;
  auto call = side.confused;
  compare_boards(side, call, kTimeToExplain, lock);
  auto other = message.found ? message.found->text() : "another collective, of more bytes";
  fail(side, mismatch_text(call, side.rank(), side.ranks[message.member], other));
}

void MpiProgressEngine::fail(MpiEndpoint& side, const std::string& text) {
  give_up(side, text, MpiFarewell::failed);
  C10_THROW_ERROR(DistBackendError, text);
}

void MpiProgressEngine::give_up(MpiEndpoint& side, const std::string& text, MpiFarewell farewell) {
  side.why = text;
  side.failed = true;
  Tasks kept;
  for (auto& task : std::exchange(under_way_, {})) {
    if (task->side.get() == &side) {
      abandon(std::move(task));
    } else {
      kept.push_back(std::move(task));
    }
  }
  under_way_ = std::move(kept);
  static const MpiFarewell words[] = {MpiFarewell::none, MpiFarewell::failed, MpiFarewell::interrupted};
  auto* word = &words[static_cast<size_t>(farewell)];
  for (size_t j = 0; j < side.ranks.size() && farewell != MpiFarewell::none; ++j) {
    try {
      if (static_cast<int64_t>(j) == side.position) continue;
      last_words_.add(side.line->send(word, sizeof *word, static_cast<int>(j), static_cast<int>(MpiStream::farewells)),
                      j);
    } catch (const MpiError&) {
      // Others find out by their own waits.
    }
  }
}

void MpiProgressEngine::abandon(std::shared_ptr<MpiTask> task) {
  task->side->forget(*task);
  task->abandoned = true;
  if (port_->ended() || !port_->may_call()) return void(abandoned_.push_back(std::move(task)));
  for (auto request : task->arriving.requests) port_->cancel(request);
  for (auto& piece : task->pieces) {
    for (auto request : piece.coming.requests) port_->cancel(request);
  }
  abandoned_.push_back(std::move(task));
  bury_abandoned();
}

void MpiProgressEngine::bury_abandoned() {
  auto over = [&](MpiMessages& messages) {
    try {
      messages.test(*port_);
    } catch (...) {
      // The line has failed already.
    }
    return !messages.open;
  };
  if (last_words_.open && over(last_words_)) last_words_.clear();
  std::erase_if(abandoned_, [&](auto& task) {
    bool all = over(task->arriving) && over(task->leaving);
    for (auto& piece : task->pieces) all = over(piece.coming) && over(piece.going) && all;
    if (all) over_.push_back(std::move(task));
    return all;
  });
}

}  // namespace intarsia
