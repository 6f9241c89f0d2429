#pragma once
// Messages between the members of a line that exchange them directly. See Note [Direct exchange].

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "intarsia/comm/collective.h"
#include "intarsia/transport/gloo/members.h"
#include "intarsia/watch/collective_board.h"
#include "intarsia/watch/sticky_error.h"

namespace c10d {
class Work;
}

namespace intarsia {

struct RecordedLine;

constexpr auto kTwoLevels = "shm+gloo";  // the carrier of a line in two levels

// What a group and its messages share: the messages may outlive the group.
class DirectLine final : public LargerLine {
 public:
  // `levels`: some of the members communicate through memory, see Note [Two levels].
  explicit DirectLine(Members members, bool levels = false);
  const Members members;
  const bool gloo, levels;
  const uint64_t hash;  // distinguishes lines that share a backend
  StickyError sticky_error;

  void number(Collective& call);  // and remembers it
  [[noreturn]] void fail(const Collective& call, const std::string& text);
  void interrupt();  // ends all waits, ours and those of the peers
  History history() const;

  std::string compare(const Collective& step, const std::vector<int64_t>& awaited) const override;
  void settle() const override;
  std::vector<int64_t> behind(const std::vector<int64_t>& ranks, const Collective& step) const override;
  std::string last_seen(const std::vector<int64_t>& ranks) const override;

 private:
  mutable std::mutex mutex_;
  uint64_t next_number_ = 0;
  History history_;
  const RecordedLine* flights_;
};

// The pending messages of one collective. They read and write the tensors' memory, so the tensors live at least as
// long.
class Messages {
 public:
  // The call has its number. `step` distinguishes several of these objects for one call.
  Messages(std::shared_ptr<DirectLine> line, Collective call, uint64_t step = 0);
  ~Messages();  // waits: the caller did not, but the peers rely on it
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
  using Clock = std::chrono::steady_clock;
  const Members& members() const { return line_->members; }
  int tag(const at::Tensor& t, int phase) const;
  template <class Post>
  void post(const at::Tensor& t, int64_t peer, Post post);
  [[noreturn]] void gone(int64_t peer, const std::exception& error);
  void check_failures();
  void compare_boards();
  std::string why_it_left(int64_t rank) const;
  void look_for_mismatch();
  void wait_for(const Message& message, Clock::time_point deadline, BoardTimes& board);
  std::vector<int64_t> missing() const;

  std::shared_ptr<DirectLine> line_;
  Collective call_;
  uint64_t hash_;
  std::vector<Message> works_;
  size_t next_ = 0;  // the first without a wait
  bool ended_ = false;
};

}  // namespace intarsia
