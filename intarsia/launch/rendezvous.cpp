#include "intarsia/launch/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "intarsia/comm/interrupts.h"
#include "intarsia/launch/secret.h"
#include "intarsia/launch/sockets.h"
#include "intarsia/launch/store_gateway.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kLoopback = "127.0.0.1";
constexpr milliseconds kPortInUsePatience{3000};  // a job that has just ended may still hold the port

double seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

constexpr milliseconds kKnock{10000};   // for one attempt to connect
constexpr milliseconds kQuestion{500};  // for a gateway to send its challenge

// TCPStore would report every attempt on stderr, so this tests the connection first; with a secret, it also proves it
// once.
void wait_for_server(const Meeting& meeting, const std::string& who, const std::string& secret, milliseconds timeout) {
  int error = 0;
  std::string refused;
  bool answered = poll_until(
      Clock::now() + timeout,
      [&] {
        auto patience = std::min(timeout, kKnock);
        auto entry = secret.empty() ? Entry{connect_to(meeting.host, meeting.port, patience), {}}
                                    : enter_gateway(meeting.host, meeting.port, secret, patience);
        error = errno;
        refused = entry.why_not;
        if (entry.fd >= 0) close(entry.fd);
        return entry.fd >= 0 || !refused.empty();
      },
      check_interrupts);
  TORCH_CHECK_WITH(DistNetworkError, refused.empty(), "[init] ", who,
                   " has a secret (INTARSIA_SECRET), but the store at ", meeting.text(), " ", refused,
                   ". Give all ranks of the job the same secret. A store that torchrun serves asks for none: "
                   "unset INTARSIA_SECRET, or have rank 0 serve one with INTARSIA_RENDEZVOUS=tcp://host:port.");
  TORCH_CHECK_WITH(DistNetworkError, answered, "[init] ", who, " waited ", seconds(timeout), " s for the store at ",
                   meeting.text(), ", which ", meeting.rank_zero_serves ? "rank 0" : "the launcher",
                   " serves: ", std::strerror(error), ". ",
                   meeting.rank_zero_serves ? "Rank 0 did not arrive" : "The launcher has ended",
                   ", or MASTER_ADDR and MASTER_PORT are wrong.");
}

int listen_patiently(const std::string& address, uint16_t port, milliseconds timeout) {
  int fd = -1;
  poll_until(
      Clock::now() + std::min(timeout, kPortInUsePatience),
      [&] {
        fd = listen_at(address, port);
        return fd >= 0 || errno != EADDRINUSE;
      },
      check_interrupts);
  TORCH_CHECK_WITH(DistNetworkError, fd >= 0, "[init] cannot serve a store at ", address, ":", port, ": ",
                   std::strerror(errno), ". Set MASTER_PORT to a free port, MASTER_ADDR to an address of this host.");
  return fd;
}

// A name server is not needed for loopback addresses.
std::optional<BriefLookups> lookups_of(const std::string& host) {
  return is_loopback(host) ? std::optional<BriefLookups>(std::in_place) : std::nullopt;
}

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, c10d::TCPStoreOptions options,
                                          milliseconds timeout) {
  options.waitWorkers = false;  // arrive() waits, and can say which ranks are missing
  options.timeout = timeout;
  auto lookups = lookups_of(host);
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// Connects without a secret. A gateway speaks first, a store does not; TCPStore would take the gateway's challenge for
// an answer, and try again.
c10::intrusive_ptr<c10d::Store> plain_store(const Meeting& meeting, c10d::TCPStoreOptions options,
                                            milliseconds timeout) {
  bool asks = !is_loopback(meeting.host) && is_gateway(meeting.host, meeting.port, kQuestion);
  TORCH_CHECK_WITH(DistNetworkError, !asks, "[init] the store at ", meeting.text(),
                   " asks for the secret of the job. Set INTARSIA_SECRET to the same as on the other ranks.");
  return tcp_store(meeting.host, options, timeout);
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

std::vector<std::string> keys_of(const std::vector<int64_t>& ranks, std::string (*key)(int64_t)) {
  std::vector<std::string> keys;
  for (auto rank : ranks) keys.push_back(key(rank));
  return keys;
}

bool wait_for_keys(c10d::Store& store, const std::vector<int64_t>& ranks, std::string (*key)(int64_t),
                   milliseconds timeout) {
  auto keys = keys_of(ranks, key);
  return poll_until(Clock::now() + timeout, [&] { return store.check(keys); }, check_interrupts);
}

void arrive_with(const std::string& word, const char* where, c10d::Store& store, int64_t rank,
                 const std::vector<int64_t>& ranks, milliseconds timeout) {
  store.set(arrival_of(rank), word);
  if (wait_for_keys(store, ranks, arrival_of, timeout)) return;
  auto late = missing(store, ranks, arrival_of);
  if (late.empty()) return;
  std::string names;
  for (auto r : late) names += (names.empty() ? "" : ", ") + std::to_string(r);
  TORCH_CHECK_WITH(DistStoreError, false, "[", where, "] rank ", rank, " waited ", seconds(timeout), " s for ",
                   ranks.size(), " ranks: ", late.size() == 1 ? "rank " : "ranks ", names,
                   " did not arrive. See whether they were started and what they print; INTARSIA_TIMEOUT sets the "
                   "wait in seconds.",
                   turned_away_text());
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
  auto secret = is_loopback(meeting.host) ? "" : job_secret();  // strangers cannot reach loopback
  if (!meeting.serves(rank)) return enter_store(meeting, "rank " + std::to_string(rank), secret, timeout).store;
  if (is_loopback(meeting.host)) return serve_store(meeting.host, meeting.port, timeout).store;
  // On all interfaces: we cannot know which one the others use.
  if (!secret.empty()) return serve_guarded_store("", meeting.port, secret, timeout).store;
  options.isServer = true;
  return tcp_store(meeting.host, options, timeout);
}

c10::intrusive_ptr<c10d::Store> connect_again(c10d::Store& store) {
  auto* inner = &store;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(inner)) inner = prefixed->getUnderlyingStore().get();
  auto* tcp = dynamic_cast<c10d::TCPStore*>(inner);
  auto lookups = tcp ? lookups_of(tcp->getHost()) : std::nullopt;
  return store.clone();
}

ServedStore serve_store(const std::string& address, uint16_t port, milliseconds timeout) {
  int fd = listen_patiently(address, port, timeout);
  c10d::TCPStoreOptions options;
  options.port = port_of(fd);
  options.isServer = true;
  options.masterListenFd = fd;
  return {tcp_store(address, options, timeout), options.port};
}

ServedStore enter_store(const Meeting& meeting, const std::string& who, const std::string& secret,
                        milliseconds timeout) {
  wait_for_server(meeting, who, secret, timeout);
  c10d::TCPStoreOptions options;
  options.port = secret.empty() ? meeting.port : open_tunnel(meeting.host, meeting.port, secret);
  auto store = secret.empty() ? plain_store(meeting, options, timeout) : tcp_store(kLoopback, options, timeout);
  return {store, options.port};
}

ServedStore serve_guarded_store(const std::string& address, uint16_t port, const std::string& secret,
                                milliseconds timeout) {
  int fd = listen_patiently(address, port, timeout);
  auto served = serve_store(kLoopback, 0, timeout);
  open_gateway(fd, served.port, secret);
  return served;
}

void arrive(const char* where, c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
            milliseconds timeout) {
  arrive_with("1", where, store, rank, ranks, timeout);
}

std::vector<std::string> exchange_texts(const char* where, c10d::Store& store, int64_t rank,
                                        const std::vector<int64_t>& ranks, const std::string& word,
                                        milliseconds timeout) {
  arrive_with(word, where, store, rank, ranks, timeout);
  std::vector<std::string> words;
  for (auto& bytes : store.multiGet(keys_of(ranks, arrival_of))) words.emplace_back(bytes.begin(), bytes.end());
  return words;
}

void leave(c10d::Store& store, int64_t rank) { store.set(leave_of(rank), std::vector<uint8_t>{1}); }

std::vector<int64_t> wait_until_left(c10d::Store& store, const std::vector<int64_t>& ranks, milliseconds timeout) {
  if (wait_for_keys(store, ranks, leave_of, timeout)) return {};
  return missing(store, ranks, leave_of);
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace intarsia
