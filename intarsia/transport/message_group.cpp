#include "intarsia/transport/message_group.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/error_message.h"
#include "intarsia/comm/message_header.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/comm/worker.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"
#include "intarsia/watch/sticky_error.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLook{50};           // between two looks at the other ranks
constexpr milliseconds kExplanation{2000};  // for a rank to post what it does
constexpr milliseconds kTimeToTell{500};    // for a rank that left to say why
constexpr size_t kCompared = 64;            // collectives

// A message to or from a member: a header followed by bytes.
struct Piece {
  int64_t member;
  char* data;
  uint64_t bytes;
  MessageHeader header{};  // sent or received
  uint64_t done = 0;       // of both
  bool finished() const { return done == sizeof header + bytes; }
};

// A member sent a header that belongs to none of our collectives.
struct UnexpectedHeader {
  int64_t member;
  MessageHeader found;
};

// The messages of one collective and the tensors that they read and write.
struct Exchange {
  Collective call;
  std::vector<Piece> sends, receives;
  std::vector<at::Tensor> tensors;
  std::atomic<int64_t> waited_since{0};  // ticks of the clock; 0: no thread waits yet
};

// A line, as the thread that runs its collectives sees it.
class MessageLine {
 public:
  MessageLine(const LineRequest& line, std::unique_ptr<ByteLinks> links)
      : links_(std::move(links)),
        ranks_(line.ranks),
        position_(line.position),
        timeout_(line.timeout),
        failures_(line.failure_board(line.instance)),
        board_(line.collective_board(std::string(links_->carrier()) + "/" + line.instance)),
        recorded_(recorded_line(line.rank(), line.ranks, links_->carrier())) {}

  const char* carrier() const { return links_->carrier(); }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t position() const { return position_; }
  void check() const { error_.check(); }

  // In the order in which the collectives begin.
  void number(Collective& call) {
    std::lock_guard lock(mutex_);
    call.number = next_number_++;
    begin_entry(recorded_, call);
    history_.add(call);
  }

  void run(Exchange& exchange) {
    error_.check();
    at::NoGradGuard no_grad;
    for (auto& piece : exchange.sends) piece.header.describe(exchange.call), piece.header.bytes = piece.bytes;
    try {
      move_all(exchange);
    } catch (const LostMember& lost) {
      receive_what_came(exchange);
      explain_loss(exchange.call, lost);
    } catch (const UnexpectedHeader& unexpected) {
      explain_header(exchange.call, unexpected);
    }
    end_entry(exchange.call);
  }

  // A thread that waits here was interrupted: reports it to the other ranks.
  void interrupt() {
    error_.set(kWasInterrupted);
    if (failures_) failures_->raise(ranks_[position_]);
  }

 private:
  void move_all(Exchange& exchange) {
    BoardTimes times;
    auto next_look = Clock::now() + kLook;
    while (true) {
      bool moved = false, finished = true;
      for (auto& piece : exchange.receives) moved |= receive(exchange.call, piece), finished &= piece.finished();
      for (auto& piece : exchange.sends) moved |= send(piece), finished &= piece.finished();
      if (finished) return;
      if (moved) continue;
      if (Clock::now() >= next_look) {
        look_around(exchange, times);
        next_look = Clock::now() + kLook;
      }
      links_->wait(kLook);
    }
  }

  // A header that a member sent before it left says more than the fact that it has left.
  void receive_what_came(Exchange& exchange) {
    for (auto& piece : exchange.receives) {
      try {
        receive(exchange.call, piece);
      } catch (const LostMember&) {
      } catch (const UnexpectedHeader& unexpected) {
        explain_header(exchange.call, unexpected);
      }
    }
  }

  bool send(Piece& piece) {
    auto before = piece.done;
    while (!piece.finished()) {
      auto [at, left] = rest_of(piece);
      auto count = links_->send(piece.member, at, left);
      if (!count) break;
      piece.done += count;
    }
    return piece.done != before;
  }

  bool receive(const Collective& call, Piece& piece) {
    auto before = piece.done;
    while (!piece.finished()) {
      auto [at, left] = rest_of(piece);
      auto count = links_->receive(piece.member, at, left);
      if (!count) break;
      piece.done += count;
      if (piece.done == sizeof piece.header) check_header(call, piece);
    }
    return piece.done != before;
  }

  static std::pair<char*, size_t> rest_of(Piece& piece) {
    constexpr auto head = sizeof piece.header;
    if (piece.done < head) return {reinterpret_cast<char*>(&piece.header) + piece.done, head - piece.done};
    return {piece.data + (piece.done - head), head + piece.bytes - piece.done};
  }

  static void check_header(const Collective& call, const Piece& piece) {
    MessageHeader expected;
    expected.describe(call);
    expected.bytes = piece.bytes;
    if (piece.header != expected) throw UnexpectedHeader{piece.member, piece.header};
  }

  void look_around(const Exchange& exchange, BoardTimes& times) {
    error_.check();
    check_interrupted(exchange.call);
    if (times.due()) {
      auto text = board_->compare(history(), exchange.call);
      if (!text.empty()) fail(exchange.call, text);
    }
    auto since = exchange.waited_since.load();
    if (!since || Clock::now() < Clock::time_point(Clock::duration(since)) + timeout_) return;
    std::vector<int64_t> late;
    for (auto* pieces : {&exchange.receives, &exchange.sends}) {
      for (auto& piece : *pieces) {
        if (!piece.finished()) late.push_back(ranks_[piece.member]);
      }
    }
    late = each_once(std::move(late));
    auto text = late_text(late, timeout_, board_->last_seen(late)) + exchange.call.advice();
    if (failures_) failures_->tell_why(ranks_[position_], text);
    fail(exchange.call, text);
  }

  void check_interrupted(const Collective& call) {
    auto rank = failures_ ? failures_->raised() : std::nullopt;
    if (rank) fail(call, interrupted_text(*rank));
  }

  [[noreturn]] void explain_loss(const Collective& call, const LostMember& lost) {
    check_interrupted(call);
    auto mismatch = board_->compare_with(lost.member, history(), call);
    if (!mismatch.empty()) fail(call, mismatch);  // it left because of us
    auto rank = ranks_[lost.member], first = rank;
    if (failures_) {
      auto patience = failures_->gone() ? milliseconds(0) : kTimeToTell;
      auto why = ask_patiently(patience, [&] { return failures_->why(rank); });
      if (!why.empty()) fail(call, why);
      first = failures_->first_gone(rank);
      if (first == ranks_[position_]) first = rank;
    }
    auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
    fail(call, gone_text({first}, others + lost.how));
  }

  // The header says what the other rank did; its entry on the board also says why.
  [[noreturn]] void explain_header(const Collective& call, const UnexpectedHeader& unexpected) {
    auto text = ask_patiently(kExplanation, [&] { return board_->compare(history(), call); });
    fail(call, text.empty() ? mismatch_text(call, ranks_[position_], ranks_[unexpected.member], unexpected.found.text())
                            : text);
  }

  [[noreturn]] void fail(const Collective& call, const std::string& text) {
    end_entry(call, false);
    report_failure();
    error_.fail(text);
  }

  History history() const {
    std::lock_guard lock(mutex_);
    return history_.tail(kCompared);
  }

  std::unique_ptr<ByteLinks> links_;
  std::vector<int64_t> ranks_;
  int64_t position_;
  milliseconds timeout_;
  std::shared_ptr<FailureBoard> failures_;
  std::shared_ptr<CollectiveBoard> board_;
  const RecordedLine* recorded_;
  StickyError error_;
  mutable std::mutex mutex_;  // guards what follows
  uint64_t next_number_ = 0;
  History history_;
};

char* bytes_of_tensor(const at::Tensor& t) { return static_cast<char*>(t.data_ptr()); }

class MessageGroup final : public Group {
 public:
  explicit MessageGroup(std::shared_ptr<MessageLine> line) : line_(std::move(line)) {}

  const char* carrier() const override { return line_->carrier(); }
  bool reduces_in_place() const override { return true; }

  Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const override {
    auto n = line_->size();
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
    MemberCounts sent(line_->size(), mine.numel()), from(line_->size(), 0);  // each member gets the same
    return run(std::move(call), mine, sent, from, all, counts);
  }

  Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                  const MemberCounts& receive_counts) const override {
    return run(std::move(call), send, send_counts, offsets_of(send_counts), receive, receive_counts);
  }

  Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const override {
    auto me = line_->position();
    MemberCounts sent(line_->size(), me == source ? buffer.numel() : 0), received(line_->size(), 0),
        from(line_->size(), 0);
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
    TORCH_CHECK_VALUE(send.is_cpu(), line_->carrier(), " carries tensors in CPU memory, not on ", send.device(), ".");
    line_->check();
    auto exchange = std::make_shared<Exchange>();
    exchange->tensors = {send, receive};
    auto width = send.element_size(), me = line_->position();
    auto to = offsets_of(receive_counts);
    for (int64_t j = 0; j < line_->size(); ++j) {
      auto *out = bytes_of_tensor(send) + from[j] * width, *in = bytes_of_tensor(receive) + to[j] * width;
      if (j == me) {
        if (receive_counts[j] && in != out) std::memcpy(in, out, receive_counts[j] * width);
        continue;
      }
      if (send_counts[j]) exchange->sends.push_back({j, out, static_cast<uint64_t>(send_counts[j] * width)});
      if (receive_counts[j]) exchange->receives.push_back({j, in, static_cast<uint64_t>(receive_counts[j] * width)});
    }
    std::lock_guard lock(order_);
    line_->number(call);
    exchange->call = std::move(call);
    auto wait = worker_.run([line = line_, exchange] { line->run(*exchange); }, [line = line_] { line->interrupt(); });
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
  return std::make_shared<MessageGroup>(std::make_shared<MessageLine>(line, std::move(links)));
}

}  // namespace intarsia
