#pragma once
// A group is one line of ranks of a real job, and how bytes travel along it.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"

namespace intarsia {

using MemberCounts = std::vector<int64_t>;  // [member], in elements

// As Engine, for one slot. A group that has failed once fails at once from then on.
class Group {
 public:
  virtual ~Group() = default;
  virtual Wait all_reduce(const at::Tensor& mine, const at::Tensor& result, ReduceOp op, bool later) const = 0;
  virtual Wait all_gather(const at::Tensor& mine, const at::Tensor& all, const MemberCounts& counts) const = 0;
  virtual Wait all_to_all(const at::Tensor& send, const MemberCounts& send_counts, const at::Tensor& receive,
                          const MemberCounts& receive_counts) const = 0;
  virtual Wait broadcast(const at::Tensor& buffer, int64_t source) const = 0;
  // None: the group has no way of its own.
  virtual std::optional<Wait> reduce_scatter(const at::Tensor&, const MemberCounts&, const at::Tensor&, ReduceOp) const {
    return std::nullopt;
  }
  virtual const char* carrier() const = 0;  // gloo, shm, ...: for traces and errors
};

}  // namespace intarsia
