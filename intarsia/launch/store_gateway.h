#pragma once
// A gateway before the store of a job: the store listens on loopback only, and connections from the network prove that
// they know the job's secret.

#include <chrono>
#include <cstdint>
#include <string>

namespace intarsia {

// Note [The store gateway]
// c10d's store accepts every connection. So it listens on loopback only, and the gateway listens on the network. The
// gateway sends a random number; the peer answers with another one and an HMAC-SHA256 of both under the secret; the
// gateway proves in the same way that it knows the secret. Then bytes are forwarded. On other hosts a tunnel on
// loopback does this for every connection there, so that programs use the store as usual. The forwarded bytes are
// neither encrypted nor signed.

// Accepts connections at `listening`, a socket, from peers that know the secret, and forwards them to the store at
// `port` of loopback. Runs until the process ends.
void open_gateway(int listening, uint16_t port, const std::string& secret);

// The peers that our gateway turned away, as a sentence for the error of a rank that waits for others: " Turned away:
// 10.0.0.2 with another secret. ..." Empty: none.
std::string turned_away_text();

// Opens a port on loopback that leads to the gateway at host:port. Runs until the process ends.
uint16_t open_tunnel(const std::string& host, uint16_t port, const std::string& secret);

// Connects to the gateway at host:port and proves that it knows the secret.
struct Entry {
  int fd = -1;          // a connection to the store, owned by the caller
  std::string why_not;  // if not: it requires no secret, or has another one; empty: no answer, see errno
};
Entry enter_gateway(const std::string& host, uint16_t port, const std::string& secret,
                    std::chrono::milliseconds timeout);

// Whether a gateway listens at host:port.
bool is_gateway(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace intarsia
