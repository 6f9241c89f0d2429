#include "cli/hosts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "intarsia/comm/interrupts.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/launch/secret.h"
#include "intarsia/launch/sockets.h"
#include "intarsia/launch/store_gateway.h"

namespace intarsia::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{300};      // between two looks at the other hosts
constexpr milliseconds kPatience{3000};  // for reporting our own failure
constexpr auto kFailed = "failed";

// The first line of a file that only this user may read. Host 0 creates it.
std::string secret_in(const std::string& path, bool make) {
  if (make) {
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
      auto text = hex(random_bytes(32)) + "\n";
      bool whole = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
      close(fd);
      if (!whole) throw UsageError("[run] cannot write the secret to " + path + ".");
    }
  }
  struct stat about{};
  std::string secret;
  std::getline(std::ifstream(path), secret);
  if (secret.empty())
    throw UsageError("[run] there is no secret in " + path + ". Host 0 makes the file; copy it to the other hosts.");
  if (stat(path.c_str(), &about) != 0 || (about.st_mode & 077))
    throw UsageError("[run] others may read " + path + ". Do chmod 600.");
  return secret;
}

std::string text_of(const Failure& failure) {
  return std::to_string(failure.code) + (failure.final ? "!" : " ") + failure.text;
}
Failure failure_of(const std::string& text) {
  auto mark = text.find_first_of(" !");
  return {text.substr(mark + 1), std::atoi(text.c_str()), text[mark] == '!'};
}

// host 1, host 3
std::string late_hosts(c10d::Store& store, int64_t hosts) {
  std::string names;
  for (int64_t i = 0; i < hosts; ++i) {
    if (!store.check({"started/" + std::to_string(i)}))
      names += (names.empty() ? "host " : ", host ") + std::to_string(i);
  }
  return names;
}

}  // namespace

struct Hosts::Wire {
  c10::intrusive_ptr<c10d::Store> served, store;  // the job's, and in it the keys of the launchers
  int64_t host = 0, hosts = 1;
  milliseconds timeout{};
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Failure> to_tell, found;
  bool told = false, left = false;
  std::atomic<bool> leaving{false};

  void set_found(const Failure& failure) {
    std::lock_guard lock(mutex);
    if (!found) found = failure;
    changed.notify_all();
  }

  // Looks at the other hosts once; false if there is nothing more to look for.
  bool look() {
    std::optional<Failure> ours;
    bool last = leaving;
    {
      std::lock_guard lock(mutex);
      ours = std::exchange(to_tell, std::nullopt);
    }
    if (ours) {
      auto first = store->compareSet(kFailed, std::string(), text_of(*ours));
      if (first != text_of(*ours)) found_first(first);
      std::lock_guard lock(mutex);
      told = true;
      changed.notify_all();
      return false;
    }
    if (store->check({kFailed})) return found_first(store->get_to_str(kFailed)), false;
    if (last && store->check({"left"})) return done();
    store->add("alive/" + std::to_string(host), 1);
    if (last) leave_or_wait();
    return true;
  }

  void found_first(const std::string& text) { set_found(failure_of(text)); }

  bool done() {
    std::lock_guard lock(mutex);
    left = true;
    changed.notify_all();
    return false;
  }

  // Host 0 serves the store: it ends last, and says so when all have said that they are ready.
  std::vector<int64_t> beats;
  Clock::time_point beaten = Clock::now();
  void leave_or_wait() {
    intarsia::leave(*store, host);
    if (host != 0) return;
    std::vector<int64_t> now;
    bool all = true;
    for (int64_t i = 1; i < hosts; ++i) {
      all = all && store->check({"left/" + std::to_string(i)});
      now.push_back(store->add("alive/" + std::to_string(i), 0));
    }
    if (all) return store->set("left", std::vector<uint8_t>{1});
    if (now != beats) beats = now, beaten = Clock::now();
    if (Clock::now() - beaten > timeout) set_found({"the other hosts no longer answer", 1, true});
  }

  void serve() {
    try {
      while (look()) {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, kPause, [&] { return to_tell.has_value(); });
        if (found || left) return;
      }
    } catch (const std::exception&) {
      if (leaving)
        done();  // it has ended normally, with all others
      else
        set_found({"the launcher of host 0 no longer answers", 1, true});
    }
  }
};

Hosts::Hosts(const RunOptions& options)
    : address_("127.0.0.1"),
      interface_(options.bind),
      secret_(job_secret()),
      hosts_(options.hosts),
      host_(options.host),
      ranks_(options.ranks),
      max_restarts_(options.max_restarts) {
  timeout_ = options.timeout ? milliseconds(static_cast<int64_t>(options.timeout * 1000)) : std::chrono::minutes(5);
  wire_ = std::make_shared<Wire>();
  if (!options.secret.empty()) secret_ = secret_in(options.secret, host_ == 0);
  if (hosts_ == 1) {
    if (secret_.empty()) secret_ = hex(random_bytes(32));
    auto served = serve_store(address_, options.port, std::chrono::minutes(5));
    wire_->served = served.store;  // as long as we live
    port_ = served.port;
    if (interface_.empty()) interface_ = address_;
    return;
  }
  auto meeting = parse_meeting("tcp://" + options.meet, "--meet");
  meeting.rank_zero_serves = false;
  auto store = host_ != 0        ? enter_store(meeting, "host " + std::to_string(host_), secret_, timeout_)
               : secret_.empty() ? serve_store(meeting.host, meeting.port, timeout_)
                                 : serve_guarded_store(meeting.host, meeting.port, secret_, timeout_);
  wire_->served = store.store;
  port_ = store.port;
  if (secret_.empty()) address_ = meeting.host;
  if (host_ == 0 && secret_.empty()) {
    std::fprintf(stderr,
                 "[run] the store at %s lets in everyone who reaches it. --secret or INTARSIA_SECRET closes it.\n",
                 options.meet.c_str());
  }
  if (interface_.empty()) interface_ = address_towards(meeting.host, meeting.port);
  meet(0);
}

void Hosts::restart(int64_t number) {
  if (hosts_ == 1) return;
  auto served = wire_->served;
  wire_ = std::make_shared<Wire>();  // the thread of the old one has ended, or will when it has read the failure
  wire_->served = served;
  meet(number);
}

void Hosts::meet(int64_t restart) {
  auto form = std::to_string(hosts_) + " hosts with " + std::to_string(ranks_) + " ranks each";
  if (max_restarts_) form += " and " + std::to_string(max_restarts_) + " restarts";
  wire_->store = c10::make_intrusive<c10d::PrefixStore>("run" + std::to_string(restart), wire_->served);
  wire_->host = host_;
  wire_->hosts = hosts_;
  wire_->timeout = timeout_;
  auto& store = *wire_->store;
  auto first = store.compareSet("form", std::string(), form);
  if (first != form) {
    throw UsageError("[run] host " + std::to_string(host_) + " was started for " + form + ", the others for " + first +
                     ". Give -n, --hosts and --max-restarts the same numbers on all hosts.");
  }
  if (store.add("started/" + std::to_string(host_), 1) != 1) {
    throw UsageError("[run] there are two hosts " + std::to_string(host_) +
                     ". Give each host its own --host, from 0 to " + std::to_string(hosts_ - 1) + ".");
  }
  auto late = late_hosts(store, hosts_);
  for (auto until = Clock::now() + timeout_; !late.empty() && Clock::now() < until; late = late_hosts(store, hosts_)) {
    check_interrupts();
    std::this_thread::sleep_for(milliseconds(50));
  }
  if (!late.empty()) {
    throw UsageError("[run] host " + std::to_string(host_) + " waited " + std::to_string(timeout_.count() / 1000) +
                     " s: " + late + " did not arrive. Start `intarsia run` there too." + turned_away_text());
  }
  std::thread([wire = wire_] { wire->serve(); }).detach();
}

std::optional<Failure> Hosts::failure_elsewhere() const {
  if (hosts_ == 1) return std::nullopt;
  std::lock_guard lock(wire_->mutex);
  return wire_->found;
}

void Hosts::tell(const Failure& failure) {
  if (hosts_ == 1) return;
  std::lock_guard lock(wire_->mutex);
  if (wire_->found || wire_->told) return;
  wire_->to_tell = failure;
  wire_->changed.notify_all();
}

std::optional<Failure> Hosts::leave(bool well) {
  if (hosts_ == 1) return std::nullopt;
  std::unique_lock lock(wire_->mutex);
  if (well) {
    wire_->leaving = true;
    wire_->changed.wait(lock, [&] { return wire_->left || wire_->found; });
  } else {
    wire_->changed.wait_for(lock, kPatience, [&] { return wire_->told || wire_->found; });
  }
  auto failure = wire_->found;
  lock.unlock();
  if (host_ == 0) std::this_thread::sleep_for(3 * kPause);  // the others read it in our store
  return failure;
}

}  // namespace intarsia::cli
