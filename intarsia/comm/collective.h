#pragma once
// Describes one collective of a rank on its line, which must be the same on all ranks of the line.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "intarsia/comm/call_log.h"
#include "intarsia/comm/engine.h"
#include "intarsia/comm/mix_hash.h"

namespace intarsia {

// Note [A message knows what it is]
// Every collective has a number on its line and a fingerprint of what it is: kind, op, dtype, counts, cause, and the
// global shape, the layouts and the origin of the tensor. Both are sent with its messages (in the tag of gloo's, in a
// header in shared memory), and a rank takes only the message that it expects. So ranks that run different collectives
// never compute with each other's bytes: they wait. Ranks that wait compare what they wait in (see CollectiveBoard).
struct Collective {
  // Groups carry the first five. The others are names for an all_to_all, and the last one for an all_gather.
  enum Kind : uint8_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    broadcast,
    halo,
    mesh_to_mesh,
    scatter,
    barrier,
  };
  Kind kind = all_reduce;
  std::optional<ReduceOp> op;
  c10::ScalarType type = c10::ScalarType::Undefined;
  int64_t count = 0;                   // elements that this rank brings
  int64_t all = 0;                     // elements that this rank ends up with
  bool even = true;                    // both are the same on all members
  int64_t source = -1;                 // of a broadcast: a rank
  uint64_t counts = 0;                 // of all members, hashed, if all know them
  const char* cause = "";              // as CauseScope
  c10::SmallVector<int64_t, 4> shape;  // as ShapeScope
  uint64_t move = 0;                   // as MoveScope, hashed; 0: none
  Placement from, to;                  // the same, of the first axis
  std::string axis;
  uint64_t number = 0;            // on its line, from 0; given by the group
  uint64_t entry = 0;             // see Note [Flight recorder]; 0: not recorded
  std::optional<uint64_t> whole;  // for a step inside a host: the number of the collective on the larger line
  c10::SmallVector<int64_t, 2> sends, receives;  // of an all_to_all: elements per member
  uint64_t origin = 0;                           // of what is moved, see Note [Origins]
  std::shared_ptr<const CallLog> log;            // of the calls on its mesh; null: none
  uint64_t calls = 0, calls_hash = 0;  // how many calls, and their hash, which is only set where they are compared

  // A step of this collective, inside a host. See Note [Two levels].
  Collective step(uint64_t which) const;

  static const char* name(Kind kind);
  static std::string name(Kind kind, const std::optional<ReduceOp>& op);  // all_reduce(sum)
  uint64_t fingerprint() const;
  std::string text() const;    // all_reduce(sum) of 64 floats for aten::mm of [8, 8] from P(sum) to R
  std::string advice() const;  // " All ranks must call item()." Empty if the cause is unknown.
};

// Records between which layouts the collectives of this scope move a tensor: the placements on some axes of a mesh.
class MoveScope {
 public:
  MoveScope(const Placements& from, const Placements& to, const std::vector<int64_t>& axes);
  ~MoveScope();
  MoveScope(const MoveScope&) = delete;
  MoveScope& operator=(const MoveScope&) = delete;

 private:
  friend Collective collective_of(Collective::Kind kind, const Line& line, const at::Tensor& mine,
                                  std::optional<ReduceOp> op);
  const Placements &from_, &to_;
  const std::vector<int64_t>& axes_;
  const MoveScope* outer_;
};

// Records the global shape of the tensor that the collectives of this scope move.
class ShapeScope {
 public:
  explicit ShapeScope(at::IntArrayRef shape);
  ~ShapeScope();
  ShapeScope(const ShapeScope&) = delete;
  ShapeScope& operator=(const ShapeScope&) = delete;

 private:
  at::IntArrayRef outer_;
};

// The collective that this rank is about to run, on behalf of the current cause.
Collective collective_of(Collective::Kind kind, const Line& line, const at::Tensor& mine,
                         std::optional<ReduceOp> op = std::nullopt);

// A part of a fingerprint.
uint64_t hash_of(const std::vector<int64_t>& counts);

// The last collectives of a line, as this rank ran them: enough to compare them. (The flight recorder keeps more.)
class History {
 public:
  static constexpr size_t kLength = 64;
  void add(const Collective& call);
  const Collective* find(uint64_t number) const;  // null: forgotten, or not yet there
  std::vector<const Collective*> last(size_t count) const;
  History tail(size_t count) const;  // a copy of the last ones

 private:
  std::vector<Collective> calls_;  // a ring
  size_t next_ = 0;
};

}  // namespace intarsia
