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
  bool final = false;  // a restart does not help: the run was stopped, or a launcher is gone
};

class Hosts {
 public:
  // Serves the store, or waits for the host that does. On several hosts it returns when all launchers have arrived;
  // different numbers on them are an error.
  explicit Hosts(const RunOptions& options);

  // Settings for the ranks of this host.
  std::string store_address() const { return address_; }
  uint16_t store_port() const { return port_; }
  std::string interface() const { return interface_; }
  std::string secret() const { return secret_; }

  // A failure on another host, or a launcher that does not answer. Does not block.
  std::optional<Failure> failure_elsewhere() const;
  void tell(const Failure& failure);  // tells the others, unless one of them reported a failure before
  // All launchers meet again, for the restart with this number, and forget failures.
  void restart(int64_t number);
  // Call this when our ranks have ended. If they ended normally, returns when those of the other hosts have ended.
  // Returns the failure of another host, if that was the first.
  std::optional<Failure> leave(bool well);

 private:
  struct Wire;
  void meet(int64_t restart);
  std::string address_, interface_, secret_;
  uint16_t port_ = 0;
  int64_t hosts_, host_, ranks_, max_restarts_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Wire> wire_;  // shared with a thread, which may hang in a dead connection and is never joined
};

}  // namespace intarsia::cli
