#include "intarsia/transport/message_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/worker.h"
#include "intarsia/watch/waiting.h"
#include "intarsia/watch/watchdog.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLongestWait{50};  // for bytes, before a wait looks around

// A message to or from a member: a header followed by bytes.
struct Piece {
  int64_t member;
  char* data;
  uint64_t bytes;
  MessageHeader header{};  // sent or received
  uint64_t done = 0;       // of both
  bool finished() const { return done == sizeof header + bytes; }
};

// The messages of one collective and the tensors that they read and write.
struct Exchange {
  Collective call;
  std::vector<Piece> sends, receives;
  std::vector<at::Tensor> tensors;
  std::atomic<int64_t> waited_since{0};  // ticks of the clock; 0: no thread waits yet
};

// One collective as the thread sees it that runs it.
class RunningExchange final : public WaitingTransport {
 public:
  RunningExchange(WatchedLine& line, ByteLinks& links, Exchange& exchange)
      : line_(line), links_(links), exchange_(exchange) {}

  void run() {
    at::NoGradGuard no_grad;
    for (auto& piece : exchange_.sends) piece.header.describe(exchange_.call), piece.header.bytes = piece.bytes;
    Watchdog dog(line_, *this);
    dog.run([&] {
      while (!finished()) {
        if (move_all()) continue;
        auto since = exchange_.waited_since.load();
        dog.set_begin(since ? std::optional(Clock::time_point(Clock::duration(since))) : std::nullopt);
        dog.look();
        links_.wait(kLongestWait);
      }
    });
    end_entry(exchange_.call);
  }

  const Collective* current() const override { return &exchange_.call; }

  std::vector<int64_t> awaited() override {
    std::vector<int64_t> ranks;
    for (auto* pieces : {&exchange_.receives, &exchange_.sends}) {
      for (auto& piece : *pieces) {
        if (!piece.finished()) ranks.push_back(line_.ranks[piece.member]);
      }
    }
    return each_once(std::move(ranks));
  }

  // What has come of all members, also of those who left since.
  bool move() override {
    bool moved = false;
    for (auto& piece : exchange_.receives) {
      try {
        moved |= receive(piece);
      } catch (const LostMember&) {
      }
    }
    return moved;
  }

  void give_up(const std::string& text, Farewell farewell, const std::string&) override {
    end_entry(exchange_.call, false);
    if (farewell == Farewell::interrupted) return line_.interrupt();
    line_.error.set(text);
  }

 private:
  bool finished() const {
    auto is_finished = [](auto& piece) { return piece.finished(); };
    return std::all_of(exchange_.receives.begin(), exchange_.receives.end(), is_finished) &&
           std::all_of(exchange_.sends.begin(), exchange_.sends.end(), is_finished);
  }

  bool move_all() {
    bool moved = false;
    for (auto& piece : exchange_.receives) moved |= receive(piece);
    for (auto& piece : exchange_.sends) moved |= send(piece);
    return moved;
  }

  bool send(Piece& piece) {
    auto before = piece.done;
    while (!piece.finished()) {
      auto [at, left] = rest_of(piece);
      auto count = links_.send(piece.member, at, left);
      if (!count) break;
      piece.done += count;
    }
    return piece.done != before;
  }

  bool receive(Piece& piece) {
    auto before = piece.done;
    while (!piece.finished()) {
      auto [at, left] = rest_of(piece);
      auto count = links_.receive(piece.member, at, left);
      if (!count) break;
      piece.done += count;
      if (piece.done == sizeof piece.header) check_header(piece);
    }
    return piece.done != before;
  }

  static std::pair<char*, size_t> rest_of(Piece& piece) {
    constexpr auto head = sizeof piece.header;
    if (piece.done < head) return {reinterpret_cast<char*>(&piece.header) + piece.done, head - piece.done};
    return {piece.data + (piece.done - head), head + piece.bytes - piece.done};
  }

  void check_header(const Piece& piece) const {
    MessageHeader expected;
    expected.describe(exchange_.call);
    expected.bytes = piece.bytes;
    if (piece.header != expected) throw UnexpectedMessage{piece.member, piece.header};
  }

  WatchedLine& line_;
  ByteLinks& links_;
  Exchange& exchange_;
};

// What a group and its collectives share: these may outlive the group.
struct MessageLine {
  std::shared_ptr<WatchedLine> watched;
  std::unique_ptr<ByteLinks> links;

  void run(Exchange& exchange) {
    watched->error.check();
    RunningExchange(*watched, *links, exchange).run();
  }
};

char* bytes_of_tensor(const at::Tensor& t) { return static_cast<char*>(t.data_ptr()); }

class MessageGroup final : public Group {
 public:
  explicit MessageGroup(std::shared_ptr<MessageLine> line) : line_(std::move(line)) {}

  const char* carrier() const override { return line_->watched->carrier.c_str(); }
  bool reduces_in_place() const override { return true; }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    auto n = line_->watched->size();
    auto values = at::empty({n, mine.numel()}, mine.options());
    auto op = *call.op;
    auto wait = then(all_gather(std::move(call), mine, values, MemberCounts(n, mine.numel())),
                     [values, n, sum = result.view(-1), op] { reduce_parts(values, n, sum, op); });
    if (later || !wait) return wait;
    wait();
    return {};
  }

  Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                  const MemberCounts& counts) const override {
    MemberCounts sent(line_->watched->size(), mine.numel()),
        from(line_->watched->size(), 0);  // each member gets the same
    return run(std::move(call), mine, sent, from, all, counts);
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    return run(std::move(call), send, send_counts, offsets_of(send_counts), receive, receive_counts);
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    auto me = line_->watched->position;
    MemberCounts sent(line_->watched->size(), me == source ? buffer.numel() : 0), received(line_->watched->size(), 0),
        from(line_->watched->size(), 0);
    if (me != source) received[source] = buffer.numel();
    return run(std::move(call), buffer, sent, from, buffer, received);
  }

 private:
  static MemberCounts offsets_of(const MemberCounts& counts) {
    MemberCounts offsets(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), int64_t{0});
    return offsets;
  }

  // Sends counts[j] elements from offset from[j] to each member j, and receives from all, one after the other. A count
  // of zero is no message.
  Wait run(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const MemberCounts& from,
           const at::Tensor& receive, const MemberCounts& receive_counts) const {
    TORCH_CHECK_VALUE(send.is_cpu(), line_->watched->carrier.c_str(), " carries tensors in CPU memory, not on ",
                      send.device(), ".");
    line_->watched->error.check();
    auto exchange = std::make_shared<Exchange>();
    exchange->tensors = {send, receive};
    auto width = send.element_size(), me = line_->watched->position;
    auto to = offsets_of(receive_counts);
    for (int64_t j = 0; j < line_->watched->size(); ++j) {
      auto *out = bytes_of_tensor(send) + from[j] * width, *in = bytes_of_tensor(receive) + to[j] * width;
      if (j == me) {
        if (receive_counts[j] && in != out) std::memcpy(in, out, receive_counts[j] * width);
        continue;
      }
      if (send_counts[j]) exchange->sends.push_back({j, out, static_cast<uint64_t>(send_counts[j] * width)});
      if (receive_counts[j]) exchange->receives.push_back({j, in, static_cast<uint64_t>(receive_counts[j] * width)});
    }
    std::lock_guard lock(order_);
    line_->watched->number(call);
    exchange->call = std::move(call);
    auto wait =
        worker_.run([line = line_, exchange] { line->run(*exchange); }, [line = line_] { line->watched->interrupt(); });
    return [exchange, wait] {
      exchange->waited_since = Clock::now().time_since_epoch().count();
      wait_for_entry(exchange->call);
      wait();
    };
  }

  std::shared_ptr<MessageLine> line_;
  mutable std::mutex order_;  // collectives are numbered in the order in which the thread runs them
  mutable Worker worker_;
};

}  // namespace

std::shared_ptr<const Group> make_message_group(const LineRequest& line, std::unique_ptr<ByteLinks> links) {
  auto watched = line.watched(links->carrier(), line.instance);
  return std::make_shared<MessageGroup>(
      std::make_shared<MessageLine>(MessageLine{std::move(watched), std::move(links)}));
}

}  // namespace intarsia
