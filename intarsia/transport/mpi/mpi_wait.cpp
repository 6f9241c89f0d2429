// How a line over MPI is waited for, and given up.

#include <algorithm>
#include <utility>

#include "intarsia/transport/mpi/mpi_progress_engine.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/watchdog.h"

namespace intarsia {

// What a wait for one collective knows of its line.
class MpiProgressEngine::Waiting final : public WaitingTransport {
 public:
  Waiting(MpiProgressEngine& progress, MpiTask& task) : progress_(progress), task_(task), side_(*task.side) {}

  const Collective* current() const override {
    if (side_.unexpected) return &side_.confused;
    return task_.finished() ? nullptr : &task_.call;
  }

  std::vector<int64_t> awaited() override {
    auto ranks = task_.missing();
    for (auto& member : ranks) member = side_.watched->ranks[member];
    return each_once(std::move(ranks));
  }

  bool move() override { return progress_.move_all(); }

  std::optional<LostMember> find_lost(bool rarely) override {
    for (auto j : task_.missing()) {
      if (side_.farewells[j] == Farewell::failed) return LostMember{j, "it failed", false, true};
      if (rarely && side_.watched->board().has_left(j)) return LostMember{j, "it left the line", true, true};
    }
    return std::nullopt;
  }

  std::optional<int64_t> find_interrupted(const WatchedLine& line) override {
    side_.read_farewells();
    for (int64_t j = 0; j < line.size(); ++j) {
      if (side_.farewells[j] == Farewell::interrupted) return line.ranks[j];
    }
    return std::nullopt;
  }

  // What it says reaches the others by the board, before the farewell does.
  void give_up(const std::string& text, Farewell farewell, const std::string&) override {
    progress_.give_up(side_, text, farewell);
  }

 private:
  MpiProgressEngine& progress_;
  MpiTask& task_;
  MpiEndpoint& side_;
};

void MpiProgressEngine::drive(const std::shared_ptr<MpiTask>& task, Lock& lock) {
  Mover<MpiProgressEngine> mover(*this);
  if (!abandoned_.empty()) bury_abandoned();
  auto side = task->side;
  Waiting waiting(*this, *task);
  Watchdog dog(*side->watched, waiting, &lock);
  dog.run([&] {
    Clock::time_point still_since{};
    for (int idle = 0, turns = 0;; ++turns) {
      bool moved = move_all();
      if (task->finished()) return;
      side->watched->error.rethrow();
      if (side->unexpected) throw UnexpectedMessage(*side->unexpected);
      idle = moved ? 0 : idle + 1;
      if (turns >= kTests) {
        if (moved || turns == kTests) still_since = Clock::now();
        dog.look();
      }
      rest(idle, still_since, lock);
    }
  });
}

void MpiProgressEngine::give_up(MpiEndpoint& side, const std::string& text, Farewell farewell) {
  side.watched->error.set(text);
  Tasks kept;
  for (auto& task : std::exchange(under_way_, {})) {
    if (task->side.get() == &side) {
      abandon(std::move(task));
    } else {
      kept.push_back(std::move(task));
    }
  }
  under_way_ = std::move(kept);
  static const Farewell words[] = {Farewell::none, Farewell::left, Farewell::failed, Farewell::interrupted};
  auto* word = &words[static_cast<size_t>(farewell)];
  for (int64_t j = 0; j < side.watched->size() && farewell != Farewell::none; ++j) {
    try {
      if (j == side.watched->position) continue;
      last_words_.add(side.line->send(word, sizeof *word, static_cast<int>(j), static_cast<int>(MpiStream::farewells)),
                      j);
    } catch (const MpiError&) {
      // Others find out by their own waits.
    }
  }
}

void MpiProgressEngine::abandon(std::shared_ptr<MpiTask> task) {
  task->side->forget(*task);
  end_entry(task->call, false);
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
