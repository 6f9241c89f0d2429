#pragma once
// An MPI between threads, as port.h has it: messages match as MPI's do, arrive late, and large ones wait for their
// receiver.

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "intarsia/launch/mpi_port.h"

namespace intarsia {

class FakeMpi {
 public:
  int64_t eager = 4096;  // bytes up to which a message needs no receiver to leave
  int broken = -1;       // messages with this rank fail

  struct Message {
    std::vector<char> copy;  // of an eager one
    const char* from = nullptr;
    char* to = nullptr;
    int64_t bytes = 0;
    int peer = 0;
    int64_t ready = -1;  // the tick at which it arrives; -1: not yet matched
    bool truncated = false, over = false;
  };
  using Place = std::tuple<std::string, int, int, int>;  // line, from, to, stream
  using Handle = std::shared_ptr<Message>;

  MpiRequest send(const Place& place, const void* from, int64_t bytes, int peer) {
    std::lock_guard lock(mutex_);
    auto message = std::make_shared<Message>();
    message->from = static_cast<const char*>(from);
    message->bytes = bytes;
    message->peer = peer;
    if (bytes <= eager) {
      message->copy.assign(message->from, message->from + bytes);
      message->from = message->copy.data();
      message->over = true;
    }
    sent_[place].push_back(message);
    match(place);
    return keep(message);
  }

  MpiRequest receive(const Place& place, void* to, int64_t bytes, int peer) {
    std::lock_guard lock(mutex_);
    auto message = std::make_shared<Message>();
    message->to = static_cast<char*>(to);
    message->bytes = bytes;
    message->peer = peer;
    wanted_[place].push_back(message);
    match(place);
    return keep(message);
  }

  int take(const std::string& line, int me, int size, int stream, void* to, int64_t bytes) {
    std::lock_guard lock(mutex_);
    for (int from = 0; from < size; ++from) {
      auto& there = sent_[{line, from, me, stream}];
      if (there.empty()) continue;
      std::memcpy(to, there.front()->from, std::min(bytes, there.front()->bytes));
      there.front()->over = true;
      there.pop_front();
      return from;
    }
    return -1;
  }

  bool test(MpiRequest* requests, size_t count) {
    std::lock_guard lock(mutex_);
    ++ticks_;
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (!requests[i]) continue;
      auto& message = *open_.at(requests[i]);
      if (message.ready >= 0 && message.ready <= ticks_) message.over = true;
      bool fails = message.truncated || (broken >= 0 && message.peer == broken && !message.over);
      if (!message.over && !fails) continue;
      bool truncated = message.truncated;
      open_.erase(std::exchange(requests[i], 0));
      any = true;
      if (!fails) continue;
      MpiError error(truncated ? "too long" : "broken");
      error.truncated = truncated;
      error.request = static_cast<int64_t>(i);
      throw error;
    }
    return any;
  }

  void cancel(MpiRequest request) {
    std::lock_guard lock(mutex_);
    auto found = open_.find(request);
    if (found == open_.end() || found->second->ready >= 0) return;
    for (auto& [place, queue] : wanted_) std::erase(queue, found->second);
    found->second->over = true;
  }

  size_t unreceived() {
    std::lock_guard lock(mutex_);
    size_t count = 0;
    for (auto& [place, queue] : sent_) count += queue.size();
    return count;
  }

 private:
  MpiRequest keep(const Handle& message) {
    open_[++last_] = message;
    return last_;
  }

  // Bytes are copied at once, and seen a little later.
  void match(const Place& place) {
    auto &sent = sent_[place], &wanted = wanted_[place];
    while (!sent.empty() && !wanted.empty()) {
      auto from = sent.front(), to = wanted.front();
      sent.pop_front();
      wanted.pop_front();
      to->truncated = from->bytes > to->bytes;
      std::memcpy(to->to, from->from, std::min(from->bytes, to->bytes));
      from->ready = to->ready = ticks_ + static_cast<int64_t>((random_ = random_ * 1103515245 + 12345) >> 16) % 5;
    }
  }

  std::mutex mutex_;
  std::map<Place, std::deque<Handle>> sent_, wanted_;
  std::map<MpiRequest, Handle> open_;
  MpiRequest last_ = 0;
  int64_t ticks_ = 0;
  uint32_t random_ = 1;
};

class FakeLine final : public MpiLine {
 public:
  FakeLine(FakeMpi& mpi, std::string name, std::vector<int> ranks, int me)
      : mpi_(mpi), name_(std::move(name)), ranks_(std::move(ranks)), me_(me) {}
  MpiRequest send(const void* from, int64_t bytes, int member, int stream) override {
    return mpi_.send({name_, me_, member, stream}, from, bytes, ranks_[member]);
  }
  MpiRequest receive(void* to, int64_t bytes, int member, int stream) override {
    return mpi_.receive({name_, member, me_, stream}, to, bytes, ranks_[member]);
  }
  int take(void* to, int64_t bytes, int stream) override {
    return mpi_.take(name_, me_, static_cast<int>(ranks_.size()), stream, to, bytes);
  }
  void leave() override {}

 private:
  FakeMpi& mpi_;
  std::string name_;
  std::vector<int> ranks_;
  int me_;
};

class FakePort final : public MpiPort {
 public:
  FakePort(std::shared_ptr<FakeMpi> mpi, int rank, int size, MpiThreads threads) : mpi_(std::move(mpi)) {
    this->rank = rank;
    this->size = size;
    this->threads = threads;
    on_this_host = size;
  }
  MpiLine* make_line(const std::vector<int>& ranks, int) override {
    std::string name;
    for (auto rank : ranks) name += std::to_string(rank) + ",";
    auto me = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    return new FakeLine(*mpi_, name + "/" + std::to_string(lines_[name]++), ranks, me);
  }
  bool test(MpiRequest* requests, size_t count) override { return mpi_->test(requests, count); }
  void cancel(MpiRequest request) override { mpi_->cancel(request); }
  void broadcast(void*, int64_t) override {}
  bool may_call() const override { return threads >= MpiThreads::serialized || std::this_thread::get_id() == main_; }
  bool ended() const override { return false; }

 private:
  std::shared_ptr<FakeMpi> mpi_;
  std::map<std::string, int> lines_;
  std::thread::id main_ = std::this_thread::get_id();
};

}  // namespace intarsia
