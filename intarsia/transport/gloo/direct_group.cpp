#include "intarsia/transport/gloo/direct_group.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/worker.h"
#include "intarsia/transport/gloo/messages.h"

namespace intarsia {
namespace {

// Note [Direct exchange]
// Gloo hands a collective to a worker thread, which hands bytes to the I/O thread. Its send and recv go to the I/O
// thread directly from the caller. So we build the collectives from these: every member posts its receives and its
// sends, then waits. That saves two thread switches, copies nothing twice, accepts uneven and zero counts, works for
// every dtype, and an error can say which rank is missing. docs/decisions has the figures.
//
// Every message has its own tag (see Note [A message knows what it is]), so messages of different collectives may be
// posted in any order.

// Up to this size a reduction is fastest if every member sends all it has to all others: one exchange instead of two.
constexpr int64_t kOneExchangeBytes = 256 << 10;  // that a member sends
// Buffers for the parts of others are reused up to this size.
constexpr int64_t kKeptBytes = 8 << 20;

at::Tensor flat(const at::Tensor& t) { return t.dim() == 1 ? t : t.view(-1); }

void copy_bytes(const at::Tensor& to, int64_t to_offset, const at::Tensor& from, int64_t from_offset, int64_t count) {
  auto width = from.element_size();
  std::memcpy(static_cast<char*>(to.data_ptr()) + to_offset * width,
              static_cast<const char*>(from.data_ptr()) + from_offset * width, count * width);
}

// A buffer as one part per member, one after the other.
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

// Reused bytes for the parts of others.
class Room {
 public:
  at::Tensor take(int64_t count, const at::Tensor& like) {
    auto bytes = count * like.element_size();
    std::lock_guard lock(mutex_);
    auto kept = std::exchange(kept_, {});
    if (!kept.defined() || kept.numel() < bytes) kept = at::empty({bytes}, at::kByte);
    return kept.narrow(0, 0, bytes).view(like.scalar_type());
  }
  void give_back(const at::Tensor& room) {
    std::lock_guard lock(mutex_);
    auto bytes = static_cast<int64_t>(room.storage().nbytes());
    if (bytes <= kKeptBytes && (!kept_.defined() || kept_.numel() < bytes)) {
      kept_ = at::empty({0}, at::kByte).set_(room.storage(), 0, {bytes}, {1});
    }
  }

 private:
  std::mutex mutex_;
  at::Tensor kept_;
};

// Each member starts with another peer, so that they do not all send to the same one at first.
template <class Do>
void each_peer(const Members& members, int64_t direction, Do action) {
  auto n = members.size();
  for (int64_t d = 1; d < n; ++d) action((members.position() + direction * d + n) % n);
}

// Member j reduces part j of all members, then sends it to them.
void reduce_in_two_exchanges(const SharedMembers& members, Room& room, const Collective& call, const at::Tensor& mine,
                             const at::Tensor& result) {
  auto n = members->size(), me = members->position(), length = (mine.numel() + n - 1) / n;
  MemberCounts counts;  // the last parts may be short or empty
  for (int64_t j = 0; j < n; ++j) counts.push_back(std::clamp<int64_t>(mine.numel() - j * length, 0, length));
  Parts from(mine, counts), to(result, counts);
  Messages incoming(members, call), outgoing(members, call);
  auto taken = room.take((n - 1) * counts[me], mine);
  auto values = taken.view({n - 1, counts[me]});
  auto own = from[me];
  if (me > 1 && own.data_ptr() == to[me].data_ptr()) own = own.clone();  // in place: others are added up there first
  auto value = [&](int64_t j) { return j == me ? own : values[j - (j > me)]; };
  each_peer(*members, -1, [&](int64_t j) {
    if (counts[me]) incoming.receive(value(j), j);
  });
  each_peer(*members, +1, [&](int64_t j) {
    if (counts[j]) outgoing.send(from[j], j);
  });
  incoming.wait_all(false);
  each_peer(*members, -1, [&](int64_t j) {
    if (counts[j]) incoming.receive(to[j], j, 1);
  });
  if (counts[me]) {
    auto sum = to[me];
    for (int64_t j = 1; j < n; ++j) reduce(sum, j == 1 ? value(0) : sum, value(j), *call.op);
    each_peer(*members, +1, [&](int64_t j) { outgoing.send(sum, j, 1); });
  }
  incoming.wait_all(false);
  outgoing.wait_all();
  room.give_back(taken);
}

class DirectGroup final : public Group {
 public:
  explicit DirectGroup(SharedMembers members) : members_(std::move(members)), room_(std::make_shared<Room>()) {}

  const char* carrier() const override { return line().carrier.c_str(); }
  bool reduces_in_place() const override { return true; }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    check(mine);
    line().number(call);
    return gather(std::move(call), mine, all, counts);
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    check(send);
    line().number(call);
    auto messages = std::make_shared<Messages>(members_, std::move(call));
    Parts into(receive, receive_counts), from(send, send_counts);
    for_each_peer(-1, [&](int64_t j) {
      if (receive_counts[j]) messages->receive(into[j], j);
    });
    for_each_peer(+1, [&](int64_t j) {
      if (send_counts[j]) messages->send(from[j], j);
    });
    if (send_counts[me()]) copy_bytes(receive, into.offsets[me()], send, from.offsets[me()], send_counts[me()]);
    return [messages] { messages->wait_all(); };
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    check(buffer);
    line().number(call);
    if (!buffer.numel()) return end_entry(call), Wait();
    auto messages = std::make_shared<Messages>(members_, std::move(call));
    if (me() != source) {
      messages->receive(buffer, source);
    } else {
      for_each_peer(+1, [&](int64_t j) { messages->send(buffer, j); });
    }
    return [messages] { messages->wait_all(); };
  }

  // An asynchronous collective must make progress on its own: one exchange does; of two, our own thread takes care.
  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    check(mine);
    auto n = members_->size();
    line().number(call);
    if (n == 1) return result.copy_(mine), end_entry(call), Wait();
    if (static_cast<int64_t>(mine.nbytes()) * (n - 1) > kOneExchangeBytes) {
      auto reduce = [members = members_, room = room_, call, mine = flat(mine), result = flat(result)] {
        at::NoGradGuard no_grad;  // the thread's own
        reduce_in_two_exchanges(members, *room, call, mine, result);
      };
      if (later) return worker_.run(reduce, [members = members_] { members->interrupt(); });
      return reduce(), Wait();
    }
    auto values = at::empty({n, mine.numel()}, mine.options());
    auto op = *call.op;
    auto gathered = gather(std::move(call), mine, values, MemberCounts(n, mine.numel()));
    auto wait = then(std::move(gathered), [values, n, sum = flat(result), op] { reduce_parts(values, n, sum, op); });
    if (!later) return wait(), Wait();
    return wait;
  }

 private:
  WatchedLine& line() const { return *members_->line; }
  int64_t me() const { return members_->position(); }

  template <class Do>
  void for_each_peer(int64_t direction, Do action) const {
    each_peer(*members_, direction, action);
  }

  void check(const at::Tensor& buffer) const {
    TORCH_CHECK_VALUE(buffer.is_cpu(), "gloo carries tensors in CPU memory, not on ", buffer.device(),
                      ". Adopt a process group of that device with mesh_from_group.");
    line().error.check();
  }

  Wait gather(Collective call, const at::Tensor& mine, const at::Tensor& all, const MemberCounts& counts) const {
    auto messages = std::make_shared<Messages>(members_, std::move(call));
    Parts into(all, counts);
    auto outgoing = flat(mine);
    for_each_peer(-1, [&](int64_t j) {
      if (counts[j]) messages->receive(into[j], j);
    });
    for_each_peer(+1, [&](int64_t j) {
      if (counts[me()]) messages->send(outgoing, j);
    });
    if (counts[me()]) copy_bytes(all, into.offsets[me()], mine, 0, counts[me()]);
    return [messages] { messages->wait_all(); };
  }

  SharedMembers members_;
  std::shared_ptr<Room> room_;
  mutable Worker worker_;
};

}  // namespace

std::unique_ptr<Group> make_direct_group(SharedMembers members) {
  return std::make_unique<DirectGroup>(std::move(members));
}

}  // namespace intarsia
