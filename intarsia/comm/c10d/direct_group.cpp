#include "intarsia/comm/c10d/direct_group.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/c10d/backend.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/comm/trouble.h"

namespace intarsia {
namespace {

// Note [Direct exchange]
// Gloo hands a collective to a worker thread, which hands bytes to the I/O thread. Its send and recv go to the I/O
// thread straight from the caller. So we build the collectives from these: every member posts its receives and its
// sends, then waits. That saves two thread switches, copies nothing twice, takes uneven and zero counts as they are,
// serves every dtype, and an error can say which rank is missing. docs/decisions has the figures.
//
// Messages between two members match in the order in which they are posted, per tag. The tag keeps lines that share
// a backend apart from each other and from a user's own messages.
constexpr int kTagBase = 0x1A75;

// Up to here a reduction is fastest if every member sends all it has to all others: one exchange instead of two.
constexpr int64_t kOneExchangeBytes = 256 << 10;  // that a member sends
// Room for the parts of others is kept for the next time up to this size.
constexpr int64_t kKeptBytes = 8 << 20;

using Clock = std::chrono::steady_clock;

std::string list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// What a group and its messages share: the messages may outlive the group.
struct State {
  Members members;
  bool gloo;
  std::mutex posting;  // the messages of two threads' collectives must not mix
  at::Tensor room;     // bytes for the parts of others; guarded by posting

  Trouble trouble;
};

// Messages that are under way. They read and write the tensors' memory, so the tensors live at least as long.
class Messages {
 public:
  explicit Messages(std::shared_ptr<State> state) : state_(std::move(state)) { works_.reserve(2 * members().size()); }
  ~Messages() {
    if (next_ == works_.size() || state_->trouble.exists()) return;
    try {
      auto guard = around_waits();
      wait_all();  // the caller did not, but the peers count on it
    } catch (const Interruption&) {
      repeat_interrupt();
    } catch (const std::exception&) {
    }
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void receive(const at::Tensor& t, int64_t from, int tag) {
    post(t, from, [&](auto& one) { return members().backend->recv(one, members().peers[from], tag); });
  }
  void send(const at::Tensor& t, int64_t to, int tag) {
    post(t, to, [&](auto& one) { return members().backend->send(one, members().peers[to], tag); });
  }

  // Gloo's works can be waited for once; calling this again is harmless.
  void wait_all() {
    if (next_ == works_.size()) return;
    state_->trouble.check();
    auto deadline = Clock::now() + members().timeout;
    for (; next_ < works_.size(); ++next_) wait_for(works_[next_], deadline);
  }

 private:
  struct Message {
    int64_t peer;
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor tensor;
  };
  const Members& members() const { return state_->members; }

  template <class Post>
  void post(const at::Tensor& t, int64_t peer, Post post) {
    std::vector<at::Tensor> one{t};
    try {
      works_.push_back({peer, post(one), t});
    } catch (const std::exception& error) {
      gone(peer, error);
    }
  }

  [[noreturn]] void gone(int64_t peer, const std::exception& error) {
    check_alarm();
    auto me = members().ranks[members().position], rank = members().ranks[peer];
    auto first = members().alarm ? members().alarm->first_gone(rank) : rank;
    if (first == me) first = rank;
    auto others = first == rank ? "" : c10::str("and then ", list({rank}), ": ");
    state_->trouble.fail(c10::str(list({first}), " is gone (", others, plain_text(error), "). See why it ended."));
  }

  // A rank that was interrupted may have sent us all we need of it; others then wait for it, and we for them.
  void check_alarm() {
    auto trouble = members().interrupted();
    if (!trouble.empty()) state_->trouble.fail(trouble);
  }

  void wait_for(const Message& message, Clock::time_point deadline) {
    try {
      auto left = [&] { return std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()); };
      Nudges nudges(state_->gloo ? message.work.get() : nullptr);
      while (!message.work->wait(std::max(left(), std::chrono::milliseconds(1)))) {
        check_interrupts();
        check_alarm();
      }
    } catch (const Interruption&) {
      state_->trouble.set("this rank was interrupted while it waited");
      members().give_up();
      throw;
    } catch (const std::exception& error) {
      if (state_->trouble.exists()) throw;
      if (Clock::now() < deadline) gone(message.peer, error);
      state_->trouble.fail(c10::str(list(missing()), " did not take part within ",
                            std::chrono::duration<double>(members().timeout).count(),
                            " s. Stuck, gone, or running other code: look at the output. ",
                            "INTARSIA_TIMEOUT sets the wait in seconds."));
    }
  }

  // After one time-out gloo fails all that is still open, at once, while what has come in is still there to be had.
  std::vector<int64_t> missing() const {
    std::vector<int64_t> ranks;
    for (auto i = next_; i < works_.size(); ++i) {
      bool late = i == next_;
      try {
        if (!late) works_[i].work->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        late = true;
      }
      if (late) ranks.push_back(members().ranks[works_[i].peer]);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  std::shared_ptr<State> state_;
  std::vector<Message> works_;
  size_t next_ = 0;  // the first that was not waited for
};

at::Tensor flat(const at::Tensor& t) { return t.dim() == 1 ? t : t.view(-1); }

void copy_bytes(const at::Tensor& to, int64_t to_offset, const at::Tensor& from, int64_t from_offset, int64_t count) {
  auto width = from.element_size();
  std::memcpy(static_cast<char*>(to.data_ptr()) + to_offset * width,
              static_cast<const char*>(from.data_ptr()) + from_offset * width, count * width);
}

// A buffer read as one part per member, one behind the other.
struct Parts {
  at::Tensor buffer;
  const MemberCounts& counts;
  MemberCounts offsets;

  Parts(const at::Tensor& whole, const MemberCounts& counts) : buffer(flat(whole)), counts(counts), offsets(counts) {
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
  }
  at::Tensor operator[](int64_t member) const {
    return counts[member] == buffer.numel() ? buffer : buffer.narrow(0, offsets[member], counts[member]);
  }
};

class DirectGroup final : public Group {
 public:
  explicit DirectGroup(Members members) : state_(std::make_shared<State>()) {
    state_->members = std::move(members);
    state_->gloo = state_->members.gloo();
    carrier_ = this->members().backend ? this->members().backend->getBackendName() : "gloo";
    uint32_t hash = 0;
    for (auto rank : this->members().ranks) hash = hash * 31 + static_cast<uint32_t>(rank) + 1;
    tag_ = kTagBase << 15 | static_cast<int>(hash % (1 << 14)) << 1;
  }

  Wait all_gather(const at::Tensor& mine, const at::Tensor& all, const MemberCounts& counts) const override {
    auto messages = start(mine);
    Parts into(all, counts);
    auto outgoing = flat(mine);
    std::lock_guard lock(state_->posting);
    for_each_peer(-1, [&](int64_t j) {
      if (counts[j]) messages->receive(into[j], j, tag_);
    });
    for_each_peer(+1, [&](int64_t j) {
      if (counts[me()]) messages->send(outgoing, j, tag_);
    });
    if (counts[me()]) copy_bytes(all, into.offsets[me()], mine, 0, counts[me()]);
    return [messages] { messages->wait_all(); };
  }

  Wait all_to_all(const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    auto messages = start(send);
    Parts into(receive, receive_counts), from(send, send_counts);
    std::lock_guard lock(state_->posting);
    for_each_peer(-1, [&](int64_t j) {
      if (receive_counts[j]) messages->receive(into[j], j, tag_);
    });
    for_each_peer(+1, [&](int64_t j) {
      if (send_counts[j]) messages->send(from[j], j, tag_);
    });
    if (send_counts[me()]) copy_bytes(receive, into.offsets[me()], send, from.offsets[me()], send_counts[me()]);
    return [messages] { messages->wait_all(); };
  }

  const char* carrier() const override { return carrier_.c_str(); }

  Wait broadcast(const at::Tensor& buffer, int64_t source) const override {
    if (members().size() > 2 && members().whole()) return backend_broadcast(members(), buffer, source);
    auto messages = start(buffer);
    if (!buffer.numel()) return {};
    std::lock_guard lock(state_->posting);
    if (me() != source) {
      messages->receive(buffer, source, tag_);
    } else {
      for_each_peer(+1, [&](int64_t j) { messages->send(buffer, j, tag_); });
    }
    return [messages] { messages->wait_all(); };
  }

  // What is waited for later must go on by itself, so it is the backend's own, where that gives our numbers.
  Wait all_reduce(const at::Tensor& mine, const at::Tensor& result, ReduceOp op, bool later) const override {
    if (later && members().size() > 1 && members().whole()) {
      result.copy_(mine);
      if (auto wait = backend_all_reduce(members(), result, op)) return *wait;
    }
    if (static_cast<int64_t>(mine.nbytes()) * (members().size() - 1) <= kOneExchangeBytes) {
      reduce_in_one_exchange(mine, result, op);
    } else {
      reduce_in_two_exchanges(flat(mine), flat(result), op);
    }
    return {};
  }

 private:
  const Members& members() const { return state_->members; }
  int64_t me() const { return members().position; }

  // Each member starts with another peer, so that they do not all talk to the same one at first.
  template <class Call>
  void for_each_peer(int64_t direction, Call call) const {
    auto n = members().size();
    for (int64_t d = 1; d < n; ++d) call((me() + direction * d + n) % n);
  }

  std::shared_ptr<Messages> start(const at::Tensor& buffer) const {
    TORCH_CHECK_VALUE(buffer.is_cpu(), "gloo carries tensors in CPU memory, not on ", buffer.device(),
                      ". Adopt a process group of that device with mesh_from_group.");
    state_->trouble.check();
    return std::make_shared<Messages>(state_);
  }

  void reduce_in_one_exchange(const at::Tensor& mine, at::Tensor result, ReduceOp op) const {
    auto n = members().size();
    if (n == 1) return void(result.copy_(mine));
    auto values = at::empty({n, mine.numel()}, mine.options());
    all_gather(mine, values, MemberCounts(n, mine.numel()))();
    auto sum = flat(result);
    for (int64_t j = 1; j < n; ++j) reduce(sum, j == 1 ? values[0] : sum, values[j], op);
  }

  // Member j reduces part j of all members, then sends it to them.
  void reduce_in_two_exchanges(const at::Tensor& mine, const at::Tensor& result, ReduceOp op) const {
    auto n = members().size(), length = (mine.numel() + n - 1) / n;
    MemberCounts counts;  // the last parts may be short or empty
    for (int64_t j = 0; j < n; ++j) counts.push_back(std::clamp<int64_t>(mine.numel() - j * length, 0, length));
    Parts from(mine, counts), to(result, counts);
    auto incoming = start(mine), outgoing = start(mine);
    std::lock_guard lock(state_->posting);
    auto values = room_for((n - 1) * counts[me()], mine).view({n - 1, counts[me()]});
    auto value = [&](int64_t j) { return j == me() ? from[j] : values[j - (j > me())]; };
    for_each_peer(-1, [&](int64_t j) {
      if (counts[me()]) incoming->receive(value(j), j, tag_);
    });
    for_each_peer(+1, [&](int64_t j) {
      if (counts[j]) outgoing->send(from[j], j, tag_);
    });
    incoming->wait_all();
    for_each_peer(-1, [&](int64_t j) {
      if (counts[j]) incoming->receive(to[j], j, tag_ + 1);
    });
    if (counts[me()]) {
      auto sum = to[me()];
      for (int64_t j = 1; j < n; ++j) reduce(sum, j == 1 ? value(0) : sum, value(j), op);
      for_each_peer(+1, [&](int64_t j) { outgoing->send(sum, j, tag_ + 1); });
    }
    incoming->wait_all();
    outgoing->wait_all();
  }

  at::Tensor room_for(int64_t count, const at::Tensor& like) const {
    auto bytes = count * like.element_size();
    if (bytes > kKeptBytes) return at::empty({count}, like.options());
    if (!state_->room.defined() || state_->room.numel() < bytes) state_->room = at::empty({bytes}, at::kByte);
    return state_->room.narrow(0, 0, bytes).view(like.scalar_type());
  }

  std::shared_ptr<State> state_;
  std::string carrier_;
  int tag_;  // and the one behind it
};

}  // namespace

std::unique_ptr<Group> make_direct_group(Members members) { return std::make_unique<DirectGroup>(std::move(members)); }

}  // namespace intarsia
