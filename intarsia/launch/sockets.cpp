#include "intarsia/launch/sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

int left_until(Deadline deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Connects within this time.
bool connect_in_time(int fd, const addrinfo& a, int milliseconds) {
  auto flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  if (connect(fd, a.ai_addr, a.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return false;
    pollfd ready{fd, POLLOUT, 0};
    int error = ETIMEDOUT;
    socklen_t length = sizeof error;
    if (poll(&ready, 1, milliseconds) > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    errno = error;
    if (error) return false;
  }
  fcntl(fd, F_SETFL, flags);
  return true;
}

// Calls `move(from, left)` until nothing is left; it returns what recv and send return.
template <class Move>
bool move_all_bytes(int fd, short event, size_t size, Deadline deadline, Move move) {
  for (size_t done = 0; done < size;) {
    pollfd ready{fd, event, 0};
    if (poll(&ready, 1, left_until(deadline)) <= 0) return false;
    auto moved = move(done, size - done);
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved <= 0) return false;
    done += moved;
  }
  return true;
}

}  // namespace

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

int connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  return socket_at(
      host, port, [&](int fd, const addrinfo& a) { return connect_in_time(fd, a, static_cast<int>(timeout.count())); });
}

int listen_at(const std::string& address, uint16_t port) {
  if (address.empty()) {
    int both = listen_at("::", port);  // and IPv4 as well
    return both >= 0 || errno == EADDRINUSE ? both : listen_at("0.0.0.0", port);
  }
  return socket_at(address, port, [](int fd, const addrinfo& a) {
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return bind(fd, a.ai_addr, a.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  });
}

// Each thread has its own resolver state.
BriefLookups::BriefLookups() {
  if (!(_res.options & RES_INIT)) res_init();
  seconds_ = std::exchange(_res.retrans, 1);
  attempts_ = std::exchange(_res.retry, 1);
}

BriefLookups::~BriefLookups() { _res.retrans = seconds_, _res.retry = attempts_; }

std::string peer_of(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  char text[NI_MAXHOST] = "an unknown address";
  auto* address = reinterpret_cast<sockaddr*>(&peer);
  if (getpeername(fd, address, &length) == 0)
    getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  char service[NI_MAXSERV] = "0";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, service, sizeof service, NI_NUMERICSERV);
  return static_cast<uint16_t>(std::stoi(service));
}

// A datagram socket that is connected sends nothing, but has an address.
std::string address_towards(const std::string& host, uint16_t port) {
  std::string text;
  socket_at(host, port, [&](int, const addrinfo& a) {
    int fd = socket(a.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char name[NI_MAXHOST] = "";
    if (fd >= 0 && connect(fd, a.ai_addr, a.ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0 &&
        text.empty()) {
      text = name;
    }
    if (fd >= 0) close(fd);
    return false;  // the stream socket is not needed
  });
  return text;
}

bool send_all(int fd, const std::string& bytes, Deadline deadline) {
  return move_all_bytes(fd, POLLOUT, bytes.size(), deadline, [&](size_t from, size_t left) {
    return send(fd, bytes.data() + from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

bool receive_all(int fd, std::string& bytes, Deadline deadline) {
  return move_all_bytes(fd, POLLIN, bytes.size(), deadline,
                        [&](size_t from, size_t left) { return recv(fd, bytes.data() + from, left, MSG_DONTWAIT); });
}

}  // namespace intarsia
