#pragma once
// TCP connections as the rendezvous needs them.

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace intarsia {

// Calls `use(socket, address)` with a fresh socket for each address of host:port until it returns true; the socket is
// then the caller's. Else -1, and errno tells why. A host that is unknown is an error.
int socket_at(const std::string& host, uint16_t port, const std::function<bool(int, const addrinfo&)>& use);

int connect_to(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);  // -1: errno tells why
int listen_at(const std::string& address,
              uint16_t port);  // the same; port 0: a free one; an empty address: all of this host
uint16_t port_of(int fd);
std::string peer_of(int fd);  // the address of the other side

// While it lives, a name server that does not answer this thread costs 1 s, not 5 or 10. c10d looks up the name of
// every address that it connects to, also of ::ffff:127.0.0.1, which no file of hosts knows.
class BriefLookups {
 public:
  BriefLookups();
  ~BriefLookups();
  BriefLookups(const BriefLookups&) = delete;
  BriefLookups& operator=(const BriefLookups&) = delete;

 private:
  int seconds_, attempts_;
};

// The address of this host from which it reaches that one; empty if it does not.
std::string address_towards(const std::string& host, uint16_t port);

// All of it, or false: the connection was closed, or the time was over.
using Deadline = std::chrono::steady_clock::time_point;
bool send_all(int fd, const std::string& bytes, Deadline deadline);
bool receive_all(int fd, std::string& bytes, Deadline deadline);  // as many as it holds

}  // namespace intarsia
