#pragma once
// A group is a connected line of ranks of a real job. Transports implement it: see docs/adding_a_transport.md.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"

namespace intarsia {

using MemberCounts = std::vector<int64_t>;  // [member], in elements

// The collectives of Engine, for one slot. `call` describes what all members must agree on; the group numbers it. A
// group that has failed once fails at once from then on.
class Group {
 public:
  virtual ~Group() = default;
  virtual Wait all_reduce(Collective call, const at::Tensor& mine, const at::Tensor& result, bool later) const = 0;
  virtual Wait all_gather(Collective call, const at::Tensor& mine, const at::Tensor& all,
                          const MemberCounts& counts) const = 0;
  virtual Wait all_to_all(Collective call, const at::Tensor& send, const MemberCounts& send_counts,
                          const at::Tensor& receive, const MemberCounts& receive_counts) const = 0;
  virtual Wait broadcast(Collective call, const at::Tensor& buffer, int64_t source) const = 0;
  // By default: an all_to_all, whose parts are reduced in the order of the line at the wait.
  virtual Wait reduce_scatter(Collective call, const at::Tensor& send, const MemberCounts& counts,
                              const at::Tensor& result) const;
  virtual const char* carrier() const = 0;                 // gloo, shm, ...: for traces and errors
  virtual bool reduces_in_place() const { return false; }  // whether the result of an all_reduce may be `mine`
};

}  // namespace intarsia
