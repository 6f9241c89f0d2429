#include "intarsia/transport/gloo/gloo_connector.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/comm/error_message.h"
#include "intarsia/comm/interrupts.h"
#include "intarsia/comm/quiet_thread.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/transport/gloo/process_group_ops.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr int64_t kLooksPerQuestion = 25;  // to the store
constexpr std::chrono::seconds kGrace{1};
constexpr std::chrono::seconds kLast{2};  // for ranks that time out a little later than we do

std::string end_key(int64_t rank) { return "made/" + std::to_string(rank); }

}  // namespace

GlooConnector::GlooConnector(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
                             std::chrono::milliseconds timeout)
    : store_(store), rank_(rank), ranks_(ranks), timeout_(timeout) {
  auto own_host = host_of(rank).text();
  auto told = exchange_texts("make_group", store, rank, ranks, c10::str(getpid(), " ", own_host), timeout);
  for (size_t j = 0; j < ranks.size(); ++j) {
    std::istringstream in(told[j]);
    int64_t pid = 0;
    std::string host;
    in >> pid;
    std::getline(in.ignore(), host);
    processes_.push_back(ranks[j] != rank && host == own_host ? Process(pid) : Process());
  }
  begun_ = Clock::now();
}

auto GlooConnector::run(std::function<Backend()> connect, FailureBoard& failures) -> Backend {
  std::packaged_task<Backend()> task(std::move(connect));
  auto made = task.get_future();
  quiet_thread([task = std::move(task)]() mutable { task(); }).detach();
  try {
    wait_for(made, failures);
    auto backend = made.get();
    store_.set(end_key(rank_), std::string("yes"));
    return backend;
  } catch (const std::exception& error) {
    fail(error, failures);
  }
}

// Where one has ended, our connections to it are made by now, or never.
void GlooConnector::wait_for(const std::future<Backend>& made, FailureBoard& failures) const {
  auto end = begun_ + timeout_;
  for (int64_t look = 1; made.wait_for(kBetweenLooks) != std::future_status::ready; ++look) {
    check_interrupts();
    bool ask = look % kLooksPerQuestion == 0;
    if (!those(&Process::ended).empty() || (ask && failures.gone())) end = std::min(end, Clock::now() + kGrace);
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < end, "not all did");
  }
}

// The ranks that have neither connected nor given up.
std::vector<int64_t> GlooConnector::still_open() const {
  std::vector<int64_t> open;
  for (auto rank : ranks_) {
    if (rank != rank_ && !store_.check({end_key(rank)})) open.push_back(rank);
  }
  return open;
}

std::vector<int64_t> GlooConnector::those(bool (Process::*are)() const) const {
  std::vector<int64_t> found;
  for (size_t j = 0; j < ranks_.size(); ++j) {
    if ((processes_[j].*are)()) found.push_back(ranks_[j]);
  }
  return found;
}

void GlooConnector::fail(const std::exception& error, FailureBoard& failures) {
  auto text = plain_text(error);
  std::vector<int64_t> open, gone;
  try {
    store_.set(end_key(rank_), std::string("no"));
    do {
      open = still_open();
      gone = those(&Process::ended);
      auto is_open = [&](int64_t rank) { return std::find(open.begin(), open.end(), rank) != open.end(); };
      if (open.empty() || std::any_of(gone.begin(), gone.end(), is_open)) break;
      check_interrupts();
      std::this_thread::sleep_for(kBetweenLooks);
    } while (Clock::now() < begun_ + timeout_ + kLast);
  } catch (const std::exception&) {  // the store's server has ended, maybe because of a rank that hangs
    open = those(&Process::stopped);
    gone = those(&Process::ended);
  }
  // A rank that connected and then ended is to blame only if no other is: it may have ended normally.
  auto got_through = [&](int64_t rank) { return std::find(open.begin(), open.end(), rank) == open.end(); };
  if (!open.empty()) std::erase_if(gone, got_through);
  if (!gone.empty()) {
    auto why = failures.why(gone[0]);
    TORCH_CHECK_WITH(DistBackendError, why.empty(), why);
    auto first = failures.first_gone(gone[0]);
    if (failures.answers() && first != rank_) gone = {first};  // else one of several may have ended because of another
    C10_THROW_ERROR(DistBackendError, "[make_group] " + gone_text(gone, "while the ranks connected: " + text));
  }
  if (!open.empty()) {
    auto late = "[make_group] " + late_text(open, timeout_, " (when connecting to others: " + text + ")");
    failures.tell_why(rank_, late);
    C10_THROW_ERROR(DistBackendError, late);
  }
  C10_THROW_ERROR(DistBackendError, c10::str("[make_group] the ranks ", c10::ArrayRef<int64_t>(ranks_),
                                             " could not connect: ", text, "."));
}

}  // namespace intarsia
