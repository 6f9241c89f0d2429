#pragma once
// An Axis is one dimension of a mesh (or several that act as one): all lines of ranks along it at once. All bytes
// between ranks go through it, and it traces them.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/engine.h"
#include "intarsia/core/mesh.h"

namespace intarsia {

class Axis {
 public:
  static const Axis& of(const DeviceMesh& mesh, int64_t axis);
  static const Axis& of(const DeviceMesh& mesh, const std::vector<int64_t>& axes);
  static const Axis& whole(const DeviceMesh& mesh);  // all axes as one

  int64_t size() const { return line_.size; }
  const std::string& name() const { return line_.name; }
  const Line& line() const { return line_; }
  size_t slot_count() const { return line_.position.size(); }
  int64_t position(size_t slot) const { return line_.position[slot]; }  // the slot's position on its line

  const World& world() const { return *engine_; }

  // Collectives, as Engine describes them. With `wait`, which points to an empty one, the caller finishes the
  // collective and does not touch the tensors until then; it stays empty if there is nothing to wait for. Without, the
  // collective has finished on return. packed.h has the same for lists of tensors.

  // The elementwise reduction of the tensors of a line, on all of them. The given tensors are unchanged.
  Shards all_reduce(const Shards& tensors, ReduceOp op, Wait* wait = nullptr) const;

  void all_gather(const Shards& mine, const Shards& all, const Counts& counts, Wait* wait = nullptr) const;

  void all_to_all(const Shards& send, const Counts& send_counts, const Shards& receive, const Counts& receive_counts,
                  Wait* wait = nullptr, Collective::Kind kind = Collective::all_to_all) const;

  // Part `position` of the reduction of the members' `send` buffers, whose parts have `counts[slot][member]` elements.
  Shards reduce_scatter(const Shards& send, const Counts& counts, ReduceOp op, Wait* wait = nullptr) const;

  // In place: every tensor becomes that of the member at `source`.
  void broadcast(const Shards& tensors, int64_t source, Wait* wait = nullptr) const;

 private:
  Axis(const DeviceMesh& mesh, const std::vector<int64_t>& axes);
  const Engine* engine_;
  Line line_;
};

}  // namespace intarsia
