#pragma once
// A gateway before the store of a job: the store listens on loopback only, and who comes from the network shows the
// job's secret first.

#include <chrono>
#include <cstdint>
#include <string>

namespace intarsia {

// Note [The store gateway]
// c10d's store lets in everyone who connects. So it listens on loopback only, and the gateway listens where the other
// hosts come in. The gateway sends a random number; who connects answers with one of its own and an HMAC-SHA256 of both
// under the secret; the gateway proves in the same way that it knows the secret. Then bytes pass through. On other
// hosts a tunnel on loopback does that for every connection of theirs, so that programs use the store there as they
// always do. What passes is neither encrypted nor signed.

// Lets those in at `listening`, a socket, who know the secret, to the store at `port` of loopback. Until the process
// ends.
void open_gateway(int listening, uint16_t port, const std::string& secret);

// Who came to our gateway and was not let in, as a sentence for the error of a rank that waits for others: " Turned
// away: 10.0.0.2 with another secret. ..." Empty: nobody.
std::string turned_away_text();

// A port of loopback that leads to the gateway at host:port. Until the process ends.
uint16_t open_tunnel(const std::string& host, uint16_t port, const std::string& secret);

// Connects to the gateway at host:port and shows it the secret.
struct Entry {
  int fd = -1;  // a connection to the store, then the caller's
  std::string
      why_not;  // else: it does not ask for a secret, it has another one; empty: nobody answered, and errno tells why
};
Entry enter_gateway(const std::string& host, uint16_t port, const std::string& secret,
                    std::chrono::milliseconds timeout);

// Whether what listens at host:port is a gateway.
bool is_gateway(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace intarsia
