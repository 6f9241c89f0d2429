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

// What a member says first: where it is, and, the first one, where its memory is and how to know that it is that.
struct Offer {
  std::string boot, processes, path;  // path is empty: none, and `why_not`
  uint64_t token = 0;
  std::string why_not = "-";

  explicit Offer(int64_t rank) : boot(boot_id(rank)), processes(process_namespace()) {}
  explicit Offer(const std::string& text) {
    std::istringstream lines(text);
    std::string number;
    for (auto* line : {&boot, &processes, &path, &number, &why_not}) std::getline(lines, *line);
    token = std::stoull(number);
  }
  std::string text() const { return c10::str(boot, "\n", processes, "\n", path, "\n", token, "\n", why_not); }
  std::string host() const { return boot + " " + processes; }
  // Why this one cannot share memory with the first one; empty: it may.
  std::string apart_from(const Offer& first) const {
    if (boot != first.boot) return "is on another host";
    return processes == first.processes ? "" : "is in another namespace of processes (" + processes + ")";
  }
};

std::string text_of(const std::exception& error) {
  auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

std::shared_ptr<Segment> make_segment(Offer& offer, int64_t size) {
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
  return segment;
}

// Throws what stands in the way.
std::shared_ptr<Segment> accept_offer(const Offer& offer, int64_t position, int64_t size) {
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

std::string host_name(int64_t rank) { return Offer(rank).host(); }

Process::Process(int64_t pid) : pid_(pid), fd_(open_process(pid)), gone_(fd_ < 0) {}
Process::~Process() {
  if (fd_ >= 0) close(fd_);
}
Process::Process(Process&& other) noexcept : pid_(other.pid_), fd_(std::exchange(other.fd_, -1)), gone_(other.gone_) {}
Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(fd_, other.fd_);
  std::swap(gone_, other.gone_);
  return *this;
}

bool Process::ended() const {
  pollfd about{fd_, POLLIN, 0};
  return gone_ || (fd_ >= 0 && poll(&about, 1, 0) > 0);
}

// "1234 (name) T ...": the name may hold anything.
bool Process::stopped() const {
  if (fd_ < 0 || ended()) return false;
  std::string text;
  std::getline(std::ifstream(c10::str("/proc/", pid_, "/stat")), text);
  auto state = text.rfind(") ");
  return state != std::string::npos && (text[state + 2] == 'T' || text[state + 2] == 't');
}

Trial try_to_share(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const std::vector<int64_t>& ranks,
                   std::chrono::milliseconds timeout) {
  int64_t size = ranks.size(), position = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  Trial trial;
  Offer own(rank);
  if (position == 0) trial.segment = make_segment(own, size);
  auto told = tell_all("make_group", *store, rank, ranks, own.text(), timeout);
  Offer offer(told[0]);
  for (int64_t j = 0; j < size; ++j) {
    Offer other(told[j]);
    trial.hosts.push_back(other.host());
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
    answer = text_of(error);
  }
  c10d::PrefixStore second("answers", store);
  auto answers = tell_all("make_group", second, rank, ranks, answer, timeout);
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
