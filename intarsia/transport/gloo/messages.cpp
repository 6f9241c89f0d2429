#include "intarsia/transport/gloo/messages.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/comm/around_waits.h"
#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/transport/gloo/process_group_ops.h"
#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/flight_report.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

constexpr size_t kComparedCalls = 64;
constexpr std::chrono::milliseconds kExplanationTime{1500}, kBetweenNotes{100}, kTimeToTell{500};

}  // namespace

DirectLine::DirectLine(Members given, bool levels)
    : members(std::move(given)), gloo(members.gloo()), levels(levels), hash(hash_of(members.ranks)) {
  auto carrier = levels ? kTwoLevels : members.backend ? members.backend->getBackendName() : "gloo";
  flights_ = recorded_line(members.ranks[members.position], members.ranks, carrier);
}

void DirectLine::number(Collective& call) {
  std::lock_guard lock(mutex_);
  call.number = next_number_++;
  begin_entry(flights_, call);
  history_.add(call);
}

void DirectLine::fail(const Collective& call, const std::string& text) {
  end_entry(call, false);
  report_failure();
  sticky_error.fail(text);
}

void DirectLine::interrupt() {
  sticky_error.set(kWasInterrupted);
  members.give_up();
}

History DirectLine::history() const {
  std::lock_guard lock(mutex_);
  return history_.tail(kComparedCalls);
}

std::string DirectLine::compare(const Collective& step, const std::vector<int64_t>& awaited) const {
  auto calls = history();
  auto* call = calls.find(*step.whole);
  return members.board && call ? members.board->compare(calls, *call, awaited) : "";
}

void DirectLine::settle() const {
  if (members.board) members.board->settle();
}

std::vector<int64_t> DirectLine::behind(const std::vector<int64_t>& ranks, const Collective& step) const {
  return members.board ? members.board->behind(ranks, *step.whole) : ranks;
}

std::string DirectLine::last_seen(const std::vector<int64_t>& ranks) const {
  return members.board ? members.board->last_seen(ranks) : "";
}

Messages::Messages(std::shared_ptr<DirectLine> line, Collective call, uint64_t step)
    : line_(std::move(line)), call_(std::move(call)) {
  hash_ = mix_hash(mix_hash(line_->hash, call_.number), call_.fingerprint());
  if (step) hash_ = mix_hash(hash_, step);
  works_.reserve(2 * members().size());
}

Messages::~Messages() {
  if (next_ == works_.size() || line_->sticky_error.exists()) return;
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
  post(t, from, [&](auto& one) { return members().backend->recv(one, members().peers[from], tag(t, phase)); });
}

void Messages::send(const at::Tensor& t, int64_t to, int phase) {
  post(t, to, [&](auto& one) { return members().backend->send(one, members().peers[to], tag(t, phase)); });
}

void Messages::wait_all(bool last) {
  if (next_ < works_.size()) {
    line_->sticky_error.check();
    wait_for_entry(call_);
    BoardTimes board;
    auto deadline = Clock::now() + members().timeout;
    for (; next_ < works_.size(); ++next_) wait_for(works_[next_], deadline, board);
    line_->settle();
  }
  if (last && !std::exchange(ended_, true)) end_entry(call_);
}

template <class Post>
void Messages::post(const at::Tensor& t, int64_t peer, Post post) {
  std::vector<at::Tensor> one{t};
  try {
    works_.push_back({peer, post(one), t});
  } catch (const std::exception& error) {
    gone(peer, error);
  }
}

void Messages::gone(int64_t peer, const std::exception& error) {
  check_failures();
  auto mismatch = members().board ? members().board->compare_with(peer, line_->history(), call_) : "";
  if (!mismatch.empty()) line_->fail(call_, mismatch);  // it left because of us
  if (line_->levels) look_for_mismatch();               // or because of another one of its host
  auto me = members().ranks[members().position], rank = members().ranks[peer];
  auto why = why_it_left(rank);
  if (!why.empty()) line_->fail(call_, why);
  auto first = members().failures ? members().failures->first_gone(rank) : rank;
  if (first == me) first = rank;
  auto others = first == rank ? "" : c10::str("and then rank ", rank, ": ");
  // The rank that served the store may have left because of another one, and can no longer say so.
  bool told = members().failures && members().failures->answers();
  auto lost = first == rank && !told ? members().unconnected(peer) : std::vector<int64_t>{first};
  line_->fail(call_, gone_text(lost, others + plain_text(error)));
}

// A rank whose wait has timed out closes its connections before it can say why.
std::string Messages::why_it_left(int64_t rank) const {
  auto& failures = members().failures;
  if (!failures) return "";
  auto patience = failures->gone() ? std::chrono::milliseconds(0) : kTimeToTell;
  return ask_patiently(patience, [&] { return failures->why(rank); });
}

// Ranks on the host of the one that left may still be about to post what they do, unless a rank is known to be gone.
void Messages::look_for_mismatch() {
  for (auto until = Clock::now() + kExplanationTime; Clock::now() < until; std::this_thread::sleep_for(kBetweenNotes)) {
    compare_boards();
    if (!members().failures || members().failures->gone() || !members().failures->answers()) return;
  }
}

// An interrupted rank may have sent us all we need from it; others then wait for it, and we for them.
void Messages::check_failures() {
  auto interrupted = members().interrupted();
  if (!interrupted.empty()) line_->fail(call_, interrupted);
}

void Messages::compare_boards() {
  std::vector<int64_t> awaited;
  if (line_->levels && next_ < works_.size()) awaited.push_back(members().ranks[works_[next_].peer]);
  auto text = members().board ? members().board->compare(line_->history(), call_, awaited) : "";
  if (!text.empty()) line_->fail(call_, text);
}

void Messages::wait_for(const Message& message, Clock::time_point deadline, BoardTimes& board) {
  try {
    auto left = [&] { return std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()); };
    Nudges nudges(line_->gloo ? message.work.get() : nullptr);
    while (!message.work->wait(std::max(left(), std::chrono::milliseconds(1)))) {
      check_interrupts();
      if (interruptible()) check_failures();
      if (board.due()) compare_boards();
    }
  } catch (const Interruption&) {
    line_->interrupt();
    throw;
  } catch (const std::exception& error) {
    if (line_->sticky_error.exists()) throw;
    if (Clock::now() < deadline) gone(message.peer, error);
    auto late = missing();
    if (line_->levels && members().board) late = members().board->behind(late, call_.number);
    auto text =
        late_text(late, members().timeout, members().board ? members().board->last_seen(late) : "") + call_.advice();
    if (members().failures) members().failures->tell_why(members().ranks[members().position], text);
    line_->fail(call_, text);
  }
}

// After one time-out gloo fails everything that is still open, at once, although received messages can still be taken.
std::vector<int64_t> Messages::missing() const {
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
  return each_once(std::move(ranks));
}

}  // namespace intarsia
