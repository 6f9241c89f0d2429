#pragma once
// Messages between the members of a line that exchange them directly. See Note [Direct exchange].

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/collective.h"
#include "intarsia/transport/gloo/members.h"
#include "intarsia/watch/watchdog.h"

namespace c10d {
class Work;
}

namespace intarsia {

// The messages of one collective that are under way. They read and write the tensors' memory, so the tensors live at
// least as long.
class Messages final : private WaitingTransport {
 public:
  // The call has its number. `step` tells the messages of one call apart that lie in several of these.
  Messages(SharedMembers members, Collective call, uint64_t step = 0);
  ~Messages() override;  // waits: the caller did not, but the peers count on it
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // `phase` distinguishes the exchanges of one collective.
  void receive(const at::Tensor& t, int64_t from, int phase = 0);
  void send(const at::Tensor& t, int64_t to, int phase = 0);

  // Waits for all messages; calling it again is harmless, although gloo's works can be waited for only once. Unless
  // this is the `last` wait, the collective continues.
  void wait_all(bool last = true);

 private:
  struct Message {
    int64_t peer;
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor tensor;
  };
  using Clock = Watchdog::Clock;
  WatchedLine& line() const { return *members_->line; }
  int tag(const at::Tensor& t, int phase) const;
  template <class Post>
  void post(const at::Tensor& t, int64_t peer, Post post);
  void wait_for(const Message& message, Clock::time_point deadline, Watchdog& dog);

  const Collective* current() const override { return &call_; }
  std::vector<int64_t> awaited() override;
  std::vector<int64_t> late() override;
  std::vector<int64_t> unreachable(const WatchedLine&, int64_t member) override {
    return members_->unconnected(member);
  }
  void give_up(const std::string& text, Farewell farewell, const std::string& said) override;

  SharedMembers members_;
  Collective call_;
  uint64_t hash_;
  std::vector<Message> works_;
  size_t next_ = 0;  // the first without a wait
  bool ended_ = false;
};

}  // namespace intarsia
