#pragma once
// The steps of collectives along a line of several hosts with several ranks on each.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "intarsia/transport/gloo/messages.h"
#include "intarsia/transport/shm/shm_group.h"
#include "intarsia/transport/two_level/hosts.h"

namespace intarsia {

// Note [Two levels]
// Inside a host bytes go through memory, between hosts over gloo, where only the first rank of each host (its leader)
// takes part: what the members of a host need from another crosses the cable once. Every collective has one number on
// the whole line; its steps inside a host have numbers there, and fingerprints that include the number of the whole. A
// rank that waits inside a host compares what the whole line waits in, so it finds a mismatch between hosts as well; a
// leader that waits for another host publishes that in its host's memory, so that its members blame the right rank.
//
// Reductions keep the order of the line: for small ones, each leader adds up the values of all ranks; large ones go
// along the hosts as one running sum, to which each host adds its members' values (see Chain).

// The steps of which collectives are made. All members of a host run a step inside it together.
class Levels {
 public:
  // `inside` is null where we are alone on our host.
  Levels(SharedMembers members, const Hosts& hosts, std::shared_ptr<const HostGroup> inside);

  const SharedMembers& members() const { return members_; }
  WatchedLine& line() const { return *members_->line; }
  int64_t me() const { return members_->position(); }
  int64_t host() const { return host_; }
  int64_t hosts() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t leader(int64_t host) const { return begins_[host]; }
  int64_t host_size(int64_t host) const { return begins_[host + 1] - begins_[host]; }
  int64_t host_of(int64_t member) const;
  bool leads() const { return me() == leader(host_); }
  int64_t largest_host() const;
  MemberCounts own_part(const MemberCounts& counts) const;  // of the members of our host

  // The leader's `into` becomes the `mine` of the members, one after the other.
  void collect(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& into) const;
  // The leader's `into`, which may be its `mine`, becomes the reduction of all `mine` in the order of the line.
  void reduce(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& into) const;
  // Every member's `all` becomes the `mine` of the members.
  void gather(const Collective& call, uint64_t step, const at::Tensor& mine, const at::Tensor& all,
              const MemberCounts& counts) const;
  // Every member's `buffer` becomes that of one member of our host: by default of the leader.
  void spread(const Collective& call, uint64_t step, const at::Tensor& buffer, int64_t source = 0) const;
  // Each member gets its part of the leader's `parts`.
  void deal(const Collective& call, uint64_t step, const at::Tensor& parts, const MemberCounts& counts,
            const at::Tensor& result) const;
  // An all_to_all of the members of our host.
  Wait trade(const Collective& call, const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
             const MemberCounts& receive_counts) const;

  // Waits for messages from or to a member on another host.
  void wait_for(Messages& messages, int64_t member) const;

  // Runs a part of a collective. If it fails, the whole line has failed: our members on this host hear of it, and what
  // is under way ends. Messages that are under way are not waited for then.
  void guard(c10::function_ref<void()> part) const;
  void interrupt() const;

 private:
  template <class Begin>
  void finish(Begin begin) const;

  SharedMembers members_;
  std::vector<int64_t> begins_;
  int64_t host_;
  std::shared_ptr<const HostGroup> inside_;
};

}  // namespace intarsia
