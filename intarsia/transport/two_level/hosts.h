#pragma once
// Which ranks of a line share a host.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/transport/shm/attach.h"

namespace intarsia {

// A line over several hosts, with the ranks of each host side by side.
struct Hosts {
  std::vector<int64_t> begins;  // for each host, its first position on the line; then the end of the line
  int64_t own;                  // our own host
  Trial trial;                  // its memory; none if we are alone

  int64_t count() const { return static_cast<int64_t>(begins.size()) - 1; }
  int64_t size(int64_t host) const { return begins[host + 1] - begins[host]; }
  int64_t of(int64_t position) const;  // the host of a member
};

// All `ranks` call it, with a store that only this call uses, and all get the same answer: none if the ranks of a host
// are not neighbours on the line, no host has several, all share one, or some that should share memory cannot.
std::optional<Hosts> find_hosts(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                const std::vector<int64_t>& ranks, std::chrono::milliseconds timeout);

}  // namespace intarsia
