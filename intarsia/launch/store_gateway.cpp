#include "intarsia/launch/store_gateway.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "intarsia/comm/quiet_thread.h"
#include "intarsia/launch/relay.h"
#include "intarsia/launch/secret.h"
#include "intarsia/launch/sockets.h"

namespace intarsia {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kHello[] = "intarsia-1 front";  // 16 letters
constexpr size_t kHelloBytes = 16, kNonce = 32, kProof = 32;
constexpr std::chrono::seconds kHandshake{10};
constexpr int kMostAtTheDoor = 256;  // pending handshakes; more connections are turned away

std::string proof_of_guest(const std::string& secret, const std::string& host_nonce, const std::string& guest_nonce) {
  return hmac_sha256(secret, "guest" + host_nonce + guest_nonce);
}
std::string proof_of_host(const std::string& secret, const std::string& host_nonce, const std::string& guest_nonce) {
  return hmac_sha256(secret, "host" + guest_nonce + host_nonce);
}

// The peers that were turned away. A stranger can try any number of times, so only some are kept.
struct TurnedAway {
  static constexpr size_t kMost = 8;
  std::mutex mutex;
  std::set<std::string> who;

  void add(const std::string& address, const char* why) {
    std::lock_guard lock(mutex);
    if (who.size() < kMost) who.insert(address + " with " + why);
  }
};
TurnedAway& turned_away() {
  static auto* all = new TurnedAway;
  return *all;
}

bool admit(int fd, const std::string& secret) {
  auto deadline = Clock::now() + kHandshake;
  auto address = peer_of(fd);  // while it is connected
  auto nonce = random_bytes(kNonce);
  std::string theirs(kNonce + kProof, '\0');
  if (!send_all(fd, kHello + nonce, deadline)) return false;
  if (!receive_all(fd, theirs, deadline)) return turned_away().add(address, "no secret"), false;
  auto guest_nonce = theirs.substr(0, kNonce);
  bool knows = equal_in_constant_time(theirs.substr(kNonce), proof_of_guest(secret, nonce, guest_nonce));
  if (!knows) return turned_away().add(address, "another secret"), false;
  return send_all(fd, proof_of_host(secret, nonce, guest_nonce), deadline);
}

// Empty: accepted.
std::string show_secret(int fd, const std::string& secret, Deadline deadline) {
  std::string hello(kHelloBytes + kNonce, '\0');
  if (!receive_all(fd, hello, deadline) || hello.substr(0, kHelloBytes) != kHello) return "does not ask for a secret";
  auto nonce = hello.substr(kHelloBytes), mine = random_bytes(kNonce);
  std::string proof(kProof, '\0');
  if (!send_all(fd, mine + proof_of_guest(secret, nonce, mine), deadline) || !receive_all(fd, proof, deadline))
    return "has another one";
  return equal_in_constant_time(proof, proof_of_host(secret, nonce, mine)) ? "" : "has another one";
}

// Calls `welcome` for each connection, on a separate thread; it returns the other side, or -1 for none.
void serve_guests(int listening, const std::function<int(int fd)>& welcome) {
  static std::atomic<int> guests{0};
  while (true) {
    int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no file descriptors left, for example
      continue;
    }
    if (++guests > kMostAtTheDoor) {
      --guests;
      close(fd);
      continue;
    }
    quiet_thread([fd, welcome] {
      int other = -1;
      try {
        other = welcome(fd);
      } catch (const std::exception&) {
        // Ignored: the connection is dropped.
      }
      if (other >= 0)
        Relay::instance().add(fd, other);
      else
        close(fd);
      --guests;
    }).detach();
  }
}

}  // namespace

std::string turned_away_text() {
  std::lock_guard lock(turned_away().mutex);
  auto& who = turned_away().who;
  if (who.empty()) return "";
  return " Turned away: " + c10::Join(", ", std::vector<std::string>(who.begin(), who.end())) +
         ". Give all the same secret.";
}

void open_gateway(int listening, uint16_t port, const std::string& secret) {
  quiet_thread([=] {
    serve_guests(listening, [=](int fd) { return admit(fd, secret) ? connect_to("127.0.0.1", port, kHandshake) : -1; });
  }).detach();
}

uint16_t open_tunnel(const std::string& host, uint16_t port, const std::string& secret) {
  int listening = listen_at("127.0.0.1", 0);
  TORCH_CHECK_WITH(DistNetworkError, listening >= 0, "[init] no port of loopback is free.");
  quiet_thread([=] {
    serve_guests(listening, [=](int) { return enter_gateway(host, port, secret, kHandshake).fd; });
  }).detach();
  return port_of(listening);
}

Entry enter_gateway(const std::string& host, uint16_t port, const std::string& secret,
                    std::chrono::milliseconds timeout) {
  int fd = connect_to(host, port, timeout);
  if (fd < 0) return {};
  auto why_not = show_secret(fd, secret, Clock::now() + timeout);
  if (why_not.empty()) return {fd, {}};
  close(fd);
  return {-1, why_not};
}

bool is_gateway(const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  int fd = connect_to(host, port, timeout);
  if (fd < 0) return false;
  std::string hello(kHelloBytes, '\0');
  bool yes = receive_all(fd, hello, Clock::now() + timeout) && hello == kHello;
  close(fd);
  return yes;
}

}  // namespace intarsia
