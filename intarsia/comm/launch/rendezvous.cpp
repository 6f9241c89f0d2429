#include "intarsia/comm/launch/rendezvous.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "intarsia/comm/interrupts.h"

namespace intarsia {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPortInUsePatience{3000};  // a job that just ended may still hold the port

double seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Calls `done` ever more slowly until it is true or the deadline has passed. Can be interrupted.
bool poll_until(Clock::time_point deadline, const std::function<bool()>& done) {
  for (auto pause = milliseconds(1);; pause = std::min(2 * pause, milliseconds(50))) {
    if (done()) return true;
    if (Clock::now() >= deadline) return false;
    check_interrupts();
    std::this_thread::sleep_for(pause);
  }
}

// Calls `use(socket, address)` with a fresh socket for each address of host:port until it returns true; the socket is
// then the caller's. Else -1, and errno tells why.
int socket_at(const std::string& host, uint16_t port, const std::function<bool(int, const addrinfo&)>& use) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  TORCH_CHECK_WITH(DistNetworkError, !failed, "[init] the host \"", host, "\" is unknown: ", gai_strerror(failed),
                   ". Correct MASTER_ADDR.");
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  int error = ENOENT;
  for (auto* address = found; address; address = address->ai_next) {
    int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (fd >= 0 && use(fd, *address)) return fd;
    error = errno;
    if (fd >= 0) close(fd);
  }
  errno = error;
  return -1;
}

int listen_at(const std::string& address, uint16_t port) {
  return socket_at(address, port, [](int fd, const addrinfo& a) {
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return bind(fd, a.ai_addr, a.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  });
}

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  char service[NI_MAXSERV] = "0";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, service, sizeof service, NI_NUMERICSERV);
  return std::stoi(service);
}

// TCPStore would report every attempt on stderr, so we knock first.
void wait_for_server(const Meeting& meeting, int64_t rank, milliseconds timeout) {
  int error = 0;
  bool answered = poll_until(Clock::now() + timeout, [&] {
    int fd = socket_at(meeting.host, meeting.port,
                       [](int fd, const addrinfo& a) { return connect(fd, a.ai_addr, a.ai_addrlen) == 0; });
    error = errno;
    if (fd >= 0) close(fd);
    return fd >= 0;
  });
  TORCH_CHECK_WITH(DistNetworkError, answered, "[init] rank ", rank, " waited ", seconds(timeout),
                   " s for the store at ", meeting.text(), ", which ",
                   meeting.rank_zero_serves ? "rank 0" : "the launcher", " serves: ", std::strerror(error), ". ",
                   meeting.rank_zero_serves ? "Rank 0 did not arrive" : "The launcher has ended",
                   ", or MASTER_ADDR and MASTER_PORT are wrong.");
}

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, c10d::TCPStoreOptions options,
                                          milliseconds timeout) {
  options.waitWorkers = false;  // arrive() waits, and can tell who is missing
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

std::string arrival_of(int64_t rank) { return "arrived/" + std::to_string(rank); }
std::string leave_of(int64_t rank) { return "left/" + std::to_string(rank); }

std::vector<int64_t> missing(c10d::Store& store, const std::vector<int64_t>& ranks, std::string (*key)(int64_t)) {
  std::vector<int64_t> result;
  for (auto rank : ranks) {
    if (!store.check({key(rank)})) result.push_back(rank);
  }
  return result;
}

bool wait_for_keys(c10d::Store& store, const std::vector<int64_t>& ranks, std::string (*key)(int64_t),
                   milliseconds timeout) {
  std::vector<std::string> keys;
  for (auto rank : ranks) keys.push_back(key(rank));
  return poll_until(Clock::now() + timeout, [&] { return store.check(keys); });
}

}  // namespace

std::string Meeting::text() const {
  return file.empty() ? "tcp://" + host + ":" + std::to_string(port) : "file://" + file;
}

Meeting parse_meeting(const std::string& text, const std::string& where) {
  Meeting meeting;
  auto colon = text.rfind(':');
  if (text.starts_with("file:///")) {
    meeting.file = text.substr(7);
    return meeting;
  }
  if (text.starts_with("tcp://") && colon > 5) {
    meeting.host = text.substr(6, colon - 6);
    auto end = text.data() + text.size();
    auto read = std::from_chars(text.data() + colon + 1, end, meeting.port);
    if (read.ec == std::errc() && read.ptr == end && meeting.port && !meeting.host.empty()) return meeting;
  }
  TORCH_CHECK_VALUE(false, "[init] ", where, " is \"", text,
                    "\". Give file:///a/path/that/all/ranks/see or tcp://host:port.");
}

c10::intrusive_ptr<c10d::Store> open_store(const Meeting& meeting, int64_t rank, int64_t size, milliseconds timeout) {
  if (!meeting.file.empty()) {
    auto store = c10::make_intrusive<c10d::FileStore>(meeting.file, size);
    store->setTimeout(timeout);
    return store;
  }
  c10d::TCPStoreOptions options;
  options.port = meeting.port;
  if (!meeting.serves(rank)) {
    wait_for_server(meeting, rank, timeout);
    return tcp_store(meeting.host, options, timeout);
  }
  if (is_loopback(meeting.host)) return serve_store(meeting.host, meeting.port, timeout).store;
  options.isServer = true;  // on all interfaces: we cannot know through which the others come
  return tcp_store(meeting.host, options, timeout);
}

ServedStore serve_store(const std::string& address, uint16_t port, milliseconds timeout) {
  int fd = -1;
  poll_until(Clock::now() + std::min(timeout, kPortInUsePatience), [&] {
    fd = listen_at(address, port);
    return fd >= 0 || errno != EADDRINUSE;
  });
  TORCH_CHECK_WITH(DistNetworkError, fd >= 0, "[init] cannot serve a store at ", address, ":", port, ": ",
                   std::strerror(errno), ". Set MASTER_PORT to a free port, MASTER_ADDR to an address of this host.");
  c10d::TCPStoreOptions options;
  options.port = port_of(fd);
  options.isServer = true;
  options.masterListenFd = fd;
  return {tcp_store(address, options, timeout), options.port};
}

void arrive(const char* where, c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
            milliseconds timeout) {
  store.set(arrival_of(rank), std::vector<uint8_t>{1});
  if (wait_for_keys(store, ranks, arrival_of, timeout)) return;
  auto late = missing(store, ranks, arrival_of);
  if (late.empty()) return;
  std::string names;
  for (auto r : late) names += (names.empty() ? "" : ", ") + std::to_string(r);
  TORCH_CHECK_WITH(DistStoreError, false, "[", where, "] rank ", rank, " waited ", seconds(timeout), " s for ",
                   ranks.size(), " ranks: ", late.size() == 1 ? "rank " : "ranks ", names,
                   " did not arrive. See whether they were started and what they print; INTARSIA_TIMEOUT sets the "
                   "wait in seconds.");
}

void leave(c10d::Store& store, int64_t rank) { store.set(leave_of(rank), std::vector<uint8_t>{1}); }

std::vector<int64_t> wait_until_left(c10d::Store& store, const std::vector<int64_t>& ranks, milliseconds timeout) {
  if (wait_for_keys(store, ranks, leave_of, timeout)) return {};
  return missing(store, ranks, leave_of);
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace intarsia
