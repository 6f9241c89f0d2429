#pragma once
// A group is one line of ranks of a real job, seen from its one hosted member, and how bytes travel along it.

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "intarsia/comm/alarm.h"
#include "intarsia/comm/engine.h"

namespace c10d {
class Backend;
}

namespace intarsia {

// The members of a line and the c10d backend that connects them. A line of one rank needs no backend.
struct Members {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::vector<int64_t> ranks;  // of the world, in the order of the line
  std::vector<int> peers;      // the same, as the backend numbers them
  int64_t position;            // our own place in both
  std::chrono::milliseconds timeout;
  std::shared_ptr<Alarm> alarm = nullptr;  // null where there is no store

  int64_t size() const { return ranks.size(); }
  bool whole() const;  // whether these are all ranks of the backend, in its order
  bool gloo() const;

  // The rank that was interrupted, as the end of an error; empty if none was.
  std::string interrupted() const;
  // We were interrupted: tells the others, and closes the connections, so that no side waits for what will not come.
  void give_up() const;
};

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
};

// Members exchange messages directly. For backends whose send and recv work side by side, as gloo's do: see
// Note [Direct exchange].
std::unique_ptr<Group> make_direct_group(Members members);

// Members use the backend's own collectives. For NCCL and all others. The members are all ranks of the backend.
std::unique_ptr<Group> make_collective_group(Members members);

// What a backend's error says, without its stack trace, source line and advice.
std::string plain_text(const std::exception& error);

// The backend's own all_reduce, in place, if it has one that gives the numbers of reduce() for this dtype and op.
std::optional<Wait> backend_all_reduce(const Members& members, const at::Tensor& buffer, ReduceOp op);

// The backend's own broadcast, in place.
Wait backend_broadcast(const Members& members, const at::Tensor& buffer, int64_t source);

}  // namespace intarsia
