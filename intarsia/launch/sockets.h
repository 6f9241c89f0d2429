#pragma once
// TCP connections, as the rendezvous needs them.

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace intarsia {

// Calls `use(socket, address)` with a new socket for each address of host:port until it returns true; the caller then
// owns the socket. Else -1, and errno says why. An unknown host is an error.
int socket_at(const std::string& host, uint16_t port, const std::function<bool(int, const addrinfo&)>& use);

int connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);  // -1: see errno
int listen_at(const std::string& address,
              uint16_t port);  // the same; port 0: a free one; an empty address: all of this host
uint16_t port_of(int fd);
std::string peer_of(int fd);  // the address of the other side

// While it lives, a name server that does not answer costs this thread 1 s, not 5 or 10. c10d looks up the name of
// every address that it connects to, including ::ffff:127.0.0.1, which no hosts file has.
class BriefLookups {
 public:
  BriefLookups();
  ~BriefLookups();
  BriefLookups(const BriefLookups&) = delete;
  BriefLookups& operator=(const BriefLookups&) = delete;

 private:
  int seconds_, attempts_;
};

// The address from which this host reaches that one; empty if it does not.
std::string address_towards(const std::string& host, uint16_t port);

// Sends or receives all of it; false if the connection was closed, or the deadline passed.
using Deadline = std::chrono::steady_clock::time_point;
bool send_all(int fd, const std::string& bytes, Deadline deadline);
bool receive_all(int fd, std::string& bytes, Deadline deadline);  // as many bytes as it holds

}  // namespace intarsia
