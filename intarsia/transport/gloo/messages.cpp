#include "intarsia/transport/gloo/messages.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {

Messages::Messages(SharedMembers members, Collective call, uint64_t step)
    : members_(std::move(members)), call_(std::move(call)) {
  hash_ = mix_hash(mix_hash(members_->hash, call_.number), call_.fingerprint());
  if (step) hash_ = mix_hash(hash_, step);
  works_.reserve(2 * members_->size());
}

Messages::~Messages() {
  if (next_ == works_.size() || line().error.exists()) return;
  try {
    auto guard = around_waits();
    wait_all();
  } catch (const Interruption&) {
    repeat_interrupt();
  } catch (const std::exception&) {
  }
}

// Above the tags that a user of the same backend is likely to use. Another size gives another tag.
int Messages::tag(const at::Tensor& t, int phase) const {
  return 1 << 30 | static_cast<int>(mix_hash(hash_, t.nbytes() * 2 + phase) >> 34);
}

void Messages::receive(const at::Tensor& t, int64_t from, int phase) {
  post(t, from, [&](auto& one) { return members_->backend->recv(one, members_->peers[from], tag(t, phase)); });
}

void Messages::send(const at::Tensor& t, int64_t to, int phase) {
  post(t, to, [&](auto& one) { return members_->backend->send(one, members_->peers[to], tag(t, phase)); });
}

void Messages::wait_all(bool last) {
  if (next_ < works_.size()) {
    line().error.check();
    wait_for_entry(call_);
    auto begin = Clock::now();
    Watchdog dog(line(), *this);
    dog.set_begin(begin);
    dog.run([&] {
      for (; next_ < works_.size(); ++next_) wait_for(works_[next_], begin + line().timeout, dog);
    });
  }
  if (last && !std::exchange(ended_, true)) end_entry(call_);
}

template <class Post>
void Messages::post(const at::Tensor& t, int64_t peer, Post post) {
  std::vector<at::Tensor> one{t};
  Watchdog(line(), *this).run([&] {
    try {
      works_.push_back({peer, post(one), t});
    } catch (const std::exception& error) {
      throw LostMember{peer, plain_text(error)};
    }
  });
}

// Gloo's waits return with its error when a connection is lost or the time is over.
void Messages::wait_for(const Message& message, Clock::time_point deadline, Watchdog& dog) {
  auto left = [&] { return std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()); };
  Nudges nudges(members_->gloo ? message.work.get() : nullptr);
  while (true) {
    try {
      if (message.work->wait(std::max(left(), std::chrono::milliseconds(1)))) return;
    } catch (const std::exception& error) {
      line().error.rethrow();
      if (Clock::now() < deadline) throw LostMember{message.peer, plain_text(error)};
      dog.fail_late();
    }
    dog.look();
  }
}

std::vector<int64_t> Messages::awaited() {
  if (next_ == works_.size()) return {};
  return {line().ranks[works_[next_].peer]};
}

// After one time-out gloo fails all that is still open, at once, while what has come in is still there to be had.
std::vector<int64_t> Messages::late() {
  std::vector<int64_t> ranks;
  for (auto i = next_; i < works_.size(); ++i) {
    bool late = i == next_;
    try {
      if (!late) works_[i].work->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      late = true;
    }
    if (late) ranks.push_back(line().ranks[works_[i].peer]);
  }
  return each_once(std::move(ranks));
}

void Messages::give_up(const std::string& text, Farewell farewell, const std::string&) {
  if (farewell == Farewell::interrupted) return members_->interrupt();
  line().error.set(text);
  end_entry(call_, false);
}

}  // namespace intarsia
