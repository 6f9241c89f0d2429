#pragma once
// An engine runs the collectives of a world. It knows flat buffers and counts; tensors and layouts are above it.
//
// Every call is for all hosted slots of a line at once: one slot in a real process, all of them in a simulation.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/comm/wait.h"
#include "intarsia/core/placement.h"
#include "intarsia/core/shards.h"
#include "intarsia/core/world.h"

namespace intarsia {

// Lines of ranks that communicate, as the hosted slots see them. Every line has the same size.
struct Line {
  std::string name;                         // of the axis, for traces and errors
  int64_t size;                             // ranks on a line
  std::vector<std::vector<int64_t>> ranks;  // per slot: the ranks of its line, in order
  std::vector<int64_t> position;            // per slot: its position on that line
  size_t mesh = 0;                          // the hash of the mesh whose axis it is; 0: none
};

using Counts = std::vector<std::vector<int64_t>>;  // [slot][member of the line], in elements

// Buffers are contiguous, one per slot, and the engine owns them until the collective has finished. Any dtype; a zero
// count is legal everywhere. Asynchronous collectives make progress on their own, so waits may come in any order.
class Engine : public World {
 public:
  using World::World;

  // `result` becomes the elementwise reduction of the `mine` of a line; the two do not overlap. Not avg: the caller
  // divides a sum. Unless `later`, it has finished on return, and gloo and the simulation reduce in the order of the
  // line: both give the same bits, on every run and on every rank.
  virtual Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op,
                          bool later) const = 0;

  // `all` receives the `mine` of every member, one after the other; counts[slot][member] elements each.
  virtual Wait all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const = 0;

  // Member j receives the j-th part of `send`; `receive` holds the parts of all members in order.
  virtual Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                          const Counts& receive_counts) const = 0;

  // `result` becomes the member's own part of the elementwise reduction of the `send` of a line; counts[slot][member]
  // elements are the part of that member. Not avg. Reduced in the order of the line: the same bits from every engine
  // and on every run.
  virtual Wait reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                              ReduceOp op) const = 0;

  // Every buffer becomes that of the member at `source`.
  virtual Wait broadcast(const Line& line, const Shards& buffers, int64_t source) const = 0;

  // What carries a line: gloo, shm, simulation, ...: for traces and errors.
  virtual std::string carrier(const Line& line) const = 0;

  // Returns when every rank of the world has arrived.
  virtual void barrier() const = 0;

  // Closes all connections. Later collectives are errors.
  virtual void close() const {}
};

// The engine of a world. All worlds are engines, except the world of one rank, which is in core.
const Engine& engine_of(const World& world);

}  // namespace intarsia
