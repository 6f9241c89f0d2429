#include "intarsia/launch/relay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/quiet_thread.h"

namespace intarsia {
namespace {

constexpr size_t kMostWaiting = 1 << 20;  // bytes; beyond, the sender has to wait

}  // namespace

Relay& Relay::instance() {
  static auto* relay = new Relay;
  return *relay;
}

Relay::Relay() {
  TORCH_CHECK(pipe2(wake_, O_CLOEXEC | O_NONBLOCK) == 0, "[init] no pipe.");
  quiet_thread([this] { serve(); }).detach();
}

void Relay::add(int one, int other) {
  for (int fd : {one, other}) {
    int yes = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes,
               sizeof yes);  // requests are short, and their senders wait for the answer
  }
  std::lock_guard lock(mutex_);
  added_.push_back({{{one, {}}, {other, {}}}});
  (void)!::write(wake_[1], "", 1);
}

std::vector<pollfd> Relay::wishes() {
  std::vector<pollfd> fds = {{wake_[0], POLLIN, 0}};
  for (auto& pair : pairs_) {
    for (int i : {0, 1}) {
      auto& side = pair.sides[i];
      short reads = pair.sides[1 - i].waiting.size() < kMostWaiting ? POLLIN : 0,
            writes = side.waiting.empty() ? 0 : POLLOUT;
      fds.push_back({side.fd, static_cast<short>(reads | writes), 0});
    }
  }
  return fds;
}

void Relay::serve() {
  while (true) {
    auto fds = wishes();
    poll(fds.data(), fds.size(), -1);
    size_t at = 1;
    for (auto pair = pairs_.begin(); pair != pairs_.end(); at += 2) {
      auto& [one, other] = pair->sides;
      bool goes_on = pass_on(one, other, fds[at].revents) && pass_on(other, one, fds[at + 1].revents) && deliver(one) &&
                     deliver(other);
      if (goes_on) {
        ++pair;
        continue;
      }
      close(one.fd);
      close(other.fd);
      pair = pairs_.erase(pair);
    }
    char drained[64];
    while (::read(wake_[0], drained, sizeof drained) > 0) continue;
    std::lock_guard lock(mutex_);
    for (auto& pair : std::exchange(added_, {})) pairs_.push_back(std::move(pair));
  }
}

// False: that side has ended.
bool Relay::pass_on(Side& from, Side& to, short events) {
  if (!(events & (POLLIN | POLLHUP | POLLERR))) return true;
  char bytes[16 << 10];
  auto got = recv(from.fd, bytes, sizeof bytes, 0);
  if (got > 0) to.waiting.append(bytes, got);
  if (got == 0) deliver(to);  // its last bytes
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

bool Relay::deliver(Side& to) {
  while (!to.waiting.empty()) {
    auto sent = send(to.fd, to.waiting.data(), to.waiting.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    to.waiting.erase(0, sent);
  }
  return true;
}

}  // namespace intarsia
