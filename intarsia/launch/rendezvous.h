#pragma once
// Where the ranks of a job meet: a key-value store that all of them can reach.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

// The place of a rendezvous: a file that every rank sees, or the host and port of a store.
struct Meeting {
  std::string file;
  std::string host;
  uint16_t port = 0;
  bool rank_zero_serves = true;  // the store of host and port; else the launcher does
  bool serves(int64_t rank) const { return file.empty() && rank_zero_serves && rank == 0; }
  std::string text() const;  // file:///tmp/meet or tcp://127.0.0.1:29500
};

// Parses the text form. The error for a wrong one names the setting, `where`, that has it.
Meeting parse_meeting(const std::string& text, const std::string& where);

// Opens the store for `size` ranks. If INTARSIA_SECRET is set and the store is not on loopback, it requires the secret,
// and we send a proof of it. The error says which side does not answer.
c10::intrusive_ptr<c10d::Store> open_store(const Meeting& meeting, int64_t rank, int64_t size,
                                           std::chrono::milliseconds timeout);

// Another connection to the same store.
c10::intrusive_ptr<c10d::Store> connect_again(c10d::Store& store);

// Serves a store on one address of this host and returns its port. Port 0 picks a free one.
struct ServedStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port;
};
ServedStore serve_store(const std::string& address, uint16_t port, std::chrono::milliseconds timeout);

// Waits for the store that another process serves. With a secret, the connection goes through a tunnel on loopback,
// whose port is returned.
ServedStore enter_store(const Meeting& meeting, const std::string& who, const std::string& secret,
                        std::chrono::milliseconds timeout);

// Serves a store on loopback, whose port it returns; connections from the network come in by address:port and need the
// secret. An empty address means all of this host. See Note [The store gateway].
ServedStore serve_guarded_store(const std::string& address, uint16_t port, const std::string& secret,
                                std::chrono::milliseconds timeout);

// Returns when all `ranks` have called it with this store. On time-out, the error names those that did not arrive.
void arrive(const char* where, c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
            std::chrono::milliseconds timeout);
// The same, and each rank gives the others a text: returns those of `ranks`, in their order.
std::vector<std::string> exchange_texts(const char* where, c10d::Store& store, int64_t rank,
                                        const std::vector<int64_t>& ranks, const std::string& word,
                                        std::chrono::milliseconds timeout);

// The server of a store must outlive its users. They call leave; the server waits for that, and returns those that have
// not left.
void leave(c10d::Store& store, int64_t rank);
std::vector<int64_t> wait_until_left(c10d::Store& store, const std::vector<int64_t>& ranks,
                                     std::chrono::milliseconds timeout);

bool is_loopback(const std::string& host);  // localhost, 127.x.x.x, ::1

}  // namespace intarsia
