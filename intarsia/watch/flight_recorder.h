#pragma once
// The flight recorder: the last collectives of this process, with their times, always on.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/comm/collective.h"
#include "intarsia/core/placement.h"

namespace intarsia {

// Note [Flight recorder]
// Every collective has an entry: it begins when its group numbers it, a thread may wait for it, and it completes or
// fails. Entries of all lines share one ring of fixed size, written without locks or allocations, so that it can always
// be on; a reader (an error, a signal, a test) skips entries that are being overwritten.

// A line of ranks as entries refer to it. Never freed: entries may outlive their group.
struct RecordedLine {
  int64_t rank;                // our own
  std::vector<int64_t> ranks;  // in the order of the line
  std::string carrier;         // gloo, shm, ...
  int64_t world;               // which of the worlds that this process joined, from 0
};
const RecordedLine* recorded_line(int64_t rank, std::vector<int64_t> ranks, std::string carrier);

// One collective. A trivially copyable value, so that it can be copied while others are written.
struct FlightEntry {
  enum State : uint64_t { under_way, completed, failed };
  static constexpr size_t kDims = 4, kAxis = 24;

  uint64_t id = 0;      // in this process, from 1
  uint64_t number = 0;  // on its line
  const RecordedLine* line = nullptr;
  const char* cause = "";
  uint64_t begun = 0, waited = 0, ended = 0;  // ticks; 0: not yet
  int64_t mine = 0, all = 0;                  // elements that this rank brings, and that it ends up with
  int64_t shape[kDims] = {};                  // global, of what is moved; the first dims
  char axis[kAxis] = "";                      // truncated if longer
  int32_t source = -1;                        // of a broadcast
  int32_t thread = 0;
  Collective::Kind kind = Collective::all_reduce;
  uint8_t op = 0;      // 0: none, else ReduceOp + 1
  int8_t type = 0;     // c10::ScalarType
  uint8_t dims = 0;    // of the shape
  bool even = true;    // all members bring, or get, equally many
  bool moves = false;  // from one placement to another
  Placement from, to;  // of the axis, if so
  State state = under_way;

  std::string text() const;  // all_reduce(sum) of 64 floats for aten::mm of [8, 8] from P(sum) to R
};

constexpr size_t kEntriesKept = 1000;

// Call this when the group has numbered the call, which keeps the entry's id. `waits`: the caller does nothing else
// until it has ended.
void begin_entry(const RecordedLine* line, Collective& call, bool waits = false);
void wait_for_entry(const Collective& call);  // a thread begins to wait
void end_entry(const Collective& call, bool well = true);

std::vector<FlightEntry> last_entries(size_t most = kEntriesKept);  // the newest last
uint64_t entries_begun();                                           // ever, in this process

// The process leaves its world: lines made from now on belong to the next world.
void next_flight_world();

}  // namespace intarsia
