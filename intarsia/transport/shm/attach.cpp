#include "intarsia/transport/shm/attach.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/comm/error_message.h"
#include "intarsia/launch/rendezvous.h"

namespace intarsia {
namespace {

constexpr int64_t kMostMembers = 256;  // beyond this, the rings to single members would take more than what they share
constexpr auto kYes = "yes ";

uint64_t random_token() {
  std::random_device device;
  return uint64_t{device()} << 32 | device() | 1;
}

// The first message of a member: where it is, and, from the first member, its memory's path and a mark to recognize it.
struct Offer {
  Host host;
  std::string path;  // path is empty: none, and `why_not`
  uint64_t token = 0;
  std::string why_not = "-";

  explicit Offer(int64_t rank) : host(host_of(rank)) {}
  explicit Offer(const std::string& text) {
    std::istringstream lines(text);
    std::string number;
    for (auto* line : {&host.boot, &host.processes, &path, &number, &why_not}) std::getline(lines, *line);
    token = std::stoull(number);
  }
  std::string text() const { return c10::str(host.boot, "\n", host.processes, "\n", path, "\n", token, "\n", why_not); }
  // Why this member cannot share memory with the first one; empty: it may.
  std::string apart_from(const Offer& first) const {
    if (host.boot != first.host.boot) return "is on another host";
    return host.processes == first.host.processes ? ""
                                                  : "is in another namespace of processes (" + host.processes + ")";
  }
};

std::shared_ptr<Segment> make_segment(Offer& offer, int64_t size) {
  std::shared_ptr<Segment> segment;
  try {
    TORCH_CHECK(size <= kMostMembers, size, " ranks are more than the ", kMostMembers, " that can share memory");
    segment = Segment::make(size);
    offer.path = segment->path();
    offer.token = random_token();
    segment->member(0).echo = offer.token;
  } catch (const std::exception& error) {
    offer.why_not = message_of(error);
  }
  return segment;
}

// Throws an error that says what prevents it.
std::shared_ptr<Segment> accept_offer(const Offer& offer, int64_t position, int64_t size) {
  auto segment = Segment::open(offer.path, size);
  TORCH_CHECK(segment->member(0).echo == offer.token, "found other memory at ", offer.path);
  segment->member(position).echo = offer.token + position;
  return segment;
}

}  // namespace

Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout) {
  int64_t size = ranks.size(), position = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  Trial trial;
  Offer own(rank);
  if (position == 0) trial.segment = make_segment(own, size);
  auto told = exchange_texts("make_group", *store, rank, ranks, own.text(), timeout);
  Offer offer(told[0]);
  for (int64_t j = 0; j < size; ++j) {
    Offer other(told[j]);
    auto apart = other.apart_from(offer);
    if (!apart.empty() && trial.why_not.empty()) trial.why_not = c10::str("rank ", ranks[j], " ", apart);
  }
  if (!trial.why_not.empty()) {
    trial.segment.reset();
    return trial;
  }
  auto answer = kYes + std::to_string(getpid());
  try {
    TORCH_CHECK(!offer.path.empty(), "found ", offer.why_not);
    check_processes_can_be_watched();
    if (position != 0) trial.segment = accept_offer(offer, position, size);
  } catch (const std::exception& error) {
    answer = message_of(error);
  }
  c10d::PrefixStore second("answers", store);
  auto answers = exchange_texts("make_group", second, rank, ranks, answer, timeout);
  for (int64_t j = 0; j < size; ++j) {
    bool yes = answers[j].starts_with(kYes);
    if (!yes && trial.why_not.empty()) trial.why_not = c10::str("rank ", ranks[j], " ", answers[j]);
    trial.processes.push_back(yes && j != position ? Process(std::stoll(answers[j].substr(4))) : Process());
  }
  if (!trial.why_not.empty()) trial.segment.reset();
  for (int64_t j = 0; trial.segment && j < size; ++j) {
    TORCH_INTERNAL_ASSERT(trial.segment->member(j).echo == offer.token + j, "rank ", ranks[j], " wrote elsewhere");
  }
  if (trial.segment) trial.segment->close_file();
  return trial;
}

}  // namespace intarsia
