#include "tests/processes/socket_transport/socket_transport.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "intarsia/job/engines.h"
#include "intarsia/launch/rendezvous.h"
#include "intarsia/launch/secret.h"
#include "intarsia/transport/message_group.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

// A socket for processes of one host, known by a name that is no file.
struct Address {
  sockaddr_un address{AF_UNIX, {}};
  socklen_t size;
  explicit Address(const std::string& name) : size(offsetof(sockaddr_un, sun_path) + 1 + name.size()) {
    std::memcpy(address.sun_path + 1, name.data(), name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

class Sockets final : public ByteLinks {
 public:
  explicit Sockets(const LineRequest& line) : sockets_(line.size(), -1), blocked_(line.size(), false) {
    auto own = "intarsia-test-" + hex(random_bytes(8));
    int listening = check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    check(bind(listening, Address(own).get(), Address(own).size));
    check(listen(listening, static_cast<int>(line.size())));
    auto names = exchange_texts("make_group", *line.store, line.rank(), line.ranks, own, line.timeout);
    for (int64_t j = 0; j < line.position; ++j) {  // each connects to those before it, and says who it is
      sockets_[j] = check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      check(connect(sockets_[j], Address(names[j]).get(), Address(names[j]).size));
      check(write(sockets_[j], &line.position, sizeof line.position));
    }
    for (int64_t j = line.position + 1; j < line.size(); ++j) {
      pollfd about{listening, POLLIN, 0};
      TORCH_CHECK_WITH(DistBackendError, poll(&about, 1, static_cast<int>(line.timeout.count())) == 1,
                       "not all members connected");
      int fd = check(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
      int64_t member = 0;
      check(recv(fd, &member, sizeof member, MSG_WAITALL));
      sockets_.at(member) = fd;
    }
    close(listening);
  }
  ~Sockets() override {
    for (int fd : sockets_) {
      if (fd >= 0) close(fd);
    }
  }

  const char* carrier() const override { return "sockets"; }

  size_t send(int64_t member, const char* from, size_t size) override {
    auto count = ::send(sockets_[member], from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    blocked_[member] = count < 0 && errno == EAGAIN;
    return moved(member, count);
  }

  size_t receive(int64_t member, char* to, size_t size) override {
    auto count = recv(sockets_[member], to, size, MSG_DONTWAIT);
    if (count == 0) throw LostMember{member, "it closed the connection"};
    return moved(member, count);
  }

  void wait(milliseconds time) override {
    std::vector<pollfd> all;
    for (size_t j = 0; j < sockets_.size(); ++j) {
      if (sockets_[j] >= 0) all.push_back({sockets_[j], static_cast<short>(POLLIN | (blocked_[j] ? POLLOUT : 0)), 0});
    }
    poll(all.data(), all.size(), static_cast<int>(time.count()));
  }

 private:
  template <class Result>
  static Result check(Result result) {
    TORCH_CHECK_WITH(DistBackendError, result >= 0, "sockets: ", std::strerror(errno));
    return result;
  }
  static size_t moved(int64_t member, ssize_t count) {
    if (count >= 0) return count;
    if (errno == EAGAIN || errno == EINTR) return 0;
    throw LostMember{member, std::strerror(errno)};
  }

  std::vector<int> sockets_;   // per member; -1: our own
  std::vector<bool> blocked_;  // has no room for more
};

class SocketTransport final : public Transport {
 public:
  Connection connect(const LineRequest& line) const override {
    return {make_message_group(line, std::make_unique<Sockets>(line))};
  }
};

}  // namespace

void add_socket_engine() {
  add_engine({"sockets", "sockets", [](const Job&, const std::shared_ptr<const GlooTransport>&) -> Transports {
                return {std::make_shared<SocketTransport>()};
              }});
}

}  // namespace intarsia
