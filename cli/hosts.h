#pragma once
// The launchers of one job on several hosts: their rendezvous, and how they learn of each other's failures.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/options.h"

namespace intarsia::cli {

// Why a run ends.
struct Failure {
  std::string text;    // rank 3 on host 1 was killed by signal 9 (SIGKILL)
  int code;            // of the run
  bool final = false;  // a restart does not help: somebody stopped the run, or a launcher is gone
};

class Hosts {
 public:
  // Serves the store, or waits for the host that does. On several hosts it returns when all launchers are there, and it
  // is an error if they were not given the same numbers.
  explicit Hosts(const RunOptions& options);

  // What the ranks of this host are told.
  std::string store_address() const { return address_; }
  uint16_t store_port() const { return port_; }
  std::string interface() const { return interface_; }
  std::string secret() const { return secret_; }

  // What failed on another host, or that one's launcher does not answer. Does not block.
  std::optional<Failure> failure_elsewhere() const;
  void tell(const Failure& failure);  // the others, unless they told of one before
  // All launchers meet once more, for the restart with this number, and know of no failure.
  void restart(int64_t number);
  // Our ranks have ended. If well, returns when those of the other hosts have ended. The failure of another host, if
  // that was the first.
  std::optional<Failure> leave(bool well);

 private:
  struct Wire;
  void meet(int64_t restart);
  std::string address_, interface_, secret_;
  uint16_t port_ = 0;
  int64_t hosts_, host_, ranks_, max_restarts_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Wire> wire_;  // shared with a thread, which may hang in a dead connection: nobody joins it
};

}  // namespace intarsia::cli
