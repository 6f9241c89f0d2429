#include "intarsia/comm/shm/meet.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/comm/launch/rendezvous.h"

namespace intarsia {
namespace {

constexpr int64_t kMostMembers = 256;  // beyond, the lanes to single members would take more than what they share
constexpr auto kYes = "yes ";

int open_process(int64_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); }

// Tests make several hosts out of one: so many ranks on each.
std::string pretended_host(int64_t rank) {
  auto* text = getenv("INTARSIA_TEST_HOSTS");
  auto each = text ? std::atoll(text) : 0;
  return each > 0 ? " as host " + std::to_string(rank / each) : "";
}

// Processes see each other's files and ends if they run under one kernel and in one namespace of processes.
std::string boot_id(int64_t rank) {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  return text + pretended_host(rank);
}

std::string process_namespace() {
  char text[64] = "";
  auto length = readlink("/proc/self/ns/pid", text, sizeof text - 1);
  return length > 0 ? std::string(text, length) : "";
}

uint64_t random_token() {
  std::random_device device;
  return uint64_t{device()} << 32 | device() | 1;
}

// What the first member says: where its memory is, and how to know that it is that.
struct Offer {
  std::string boot, processes = process_namespace(), path;  // path is empty: none, and `why_not`
  uint64_t token = 0;
  std::string why_not = "-";

  std::string text() const {
    return c10::str(boot, "\n", processes, "\n", path, "\n", token, "\n", why_not);
  }
  static Offer parse(const std::string& text) {
    Offer offer;
    std::istringstream lines(text);
    std::string token;
    for (auto* line : {&offer.boot, &offer.processes, &offer.path, &token, &offer.why_not}) std::getline(lines, *line);
    offer.token = std::stoull(token);
    return offer;
  }
};

std::string text_of(const std::exception& error) {
  auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

std::shared_ptr<Segment> make_offer(c10d::Store& store, int64_t rank, int64_t size) {
  Offer offer;
  offer.boot = boot_id(rank);
  std::shared_ptr<Segment> segment;
  try {
    TORCH_CHECK(size <= kMostMembers, size, " ranks are more than the ", kMostMembers, " that can share memory");
    segment = Segment::make(size);
    offer.path = segment->path();
    offer.token = random_token();
    segment->member(0).echo = offer.token;
  } catch (const std::exception& error) {
    offer.why_not = text_of(error);
  }
  store.set("offer", offer.text());
  return segment;
}

// Throws what stands in the way.
std::shared_ptr<Segment> accept_offer(const Offer& offer, int64_t rank, int64_t position, int64_t size) {
  TORCH_CHECK(offer.boot == boot_id(rank), "is on another host");
  TORCH_CHECK(offer.processes == process_namespace(), "is in another namespace of processes (", process_namespace(), ")");
  auto segment = Segment::open(offer.path, size);
  TORCH_CHECK(segment->member(0).echo == offer.token, "found other memory at ", offer.path);
  segment->member(position).echo = offer.token + position;
  return segment;
}

void check_processes_can_be_watched() {
  int self = open_process(getpid());
  TORCH_CHECK(self >= 0, "cannot watch other processes: ", std::strerror(errno));
  close(self);
}

}  // namespace

std::string host_name(int64_t rank) { return boot_id(rank) + " " + process_namespace(); }

Process::Process(int64_t pid) : fd_(open_process(pid)), gone_(fd_ < 0) {}
Process::~Process() {
  if (fd_ >= 0) close(fd_);
}
Process::Process(Process&& other) noexcept : fd_(std::exchange(other.fd_, -1)), gone_(other.gone_) {}
Process& Process::operator=(Process&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(gone_, other.gone_);
  return *this;
}

bool Process::ended() const {
  pollfd about{fd_, POLLIN, 0};
  return gone_ || (fd_ >= 0 && poll(&about, 1, 0) > 0);
}

Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout) {
  int64_t size = ranks.size(), position = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  Trial trial;
  if (position == 0) trial.segment = make_offer(*store, rank, size);
  arrive("make_group", *store, rank, ranks, timeout);
  auto offer = Offer::parse(store->get_to_str("offer"));
  auto answer = kYes + std::to_string(getpid());
  try {
    TORCH_CHECK(!offer.path.empty(), "found ", offer.why_not);
    check_processes_can_be_watched();
    if (position != 0) trial.segment = accept_offer(offer, rank, position, size);
  } catch (const std::exception& error) {
    answer = text_of(error);
  }
  store->set("answer/" + std::to_string(rank), answer);
  c10d::PrefixStore answers("answers", store);
  arrive("make_group", answers, rank, ranks, timeout);
  for (int64_t j = 0; j < size; ++j) {
    auto other = store->get_to_str("answer/" + std::to_string(ranks[j]));
    bool yes = other.starts_with(kYes);
    if (!yes && trial.why_not.empty()) trial.why_not = c10::str("rank ", ranks[j], " ", other);
    trial.processes.push_back(yes && j != position ? Process(std::stoll(other.substr(4))) : Process());
  }
  if (!trial.why_not.empty()) trial.segment.reset();
  for (int64_t j = 0; trial.segment && j < size; ++j) {
    TORCH_INTERNAL_ASSERT(trial.segment->member(j).echo == offer.token + j, "rank ", ranks[j], " wrote elsewhere");
  }
  if (trial.segment) trial.segment->close_file();
  return trial;
}

}  // namespace intarsia
