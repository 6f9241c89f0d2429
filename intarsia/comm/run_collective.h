#pragma once
// Runs one collective: starts it, waits for it, records it in the trace, and adds context to its errors.

#include <cstdint>
#include <optional>

#include <c10/util/FunctionRef.h>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/engine.h"

namespace intarsia {

// What an Axis asks of its engine; see Engine.
struct CollectiveRequest {
  Collective::Kind kind;
  const Shards& send;
  const Shards& receive;  // the same in a broadcast
  const Counts* send_counts = nullptr;
  const Counts* receive_counts = nullptr;
  std::optional<ReduceOp> op = {};
  int64_t source = -1;
  int64_t bytes_sent = 0, bytes_received = 0;  // the most that a slot exchanges with others, for the trace
};

// Begins a collective of `engine` along `line`, and waits for it, or leaves that to the caller if there is a `wait`,
// which points to an empty one. An average travels as a sum, which is divided at the end.
void run_collective(const Engine& engine, const Line& line, const CollectiveRequest& request, Wait* wait);

// The same where `start` moves the bytes: an all_to_all among simulated ranks.
void run_all_to_all(const Engine& engine, const Line& line, int64_t bytes_sent, int64_t bytes_received, Wait* wait,
                    c10::function_ref<Wait()> start);

// Waits until all ranks of the line have come to the same `start`, which is not recorded.
void run_barrier(const Engine& engine, const Line& line, c10::function_ref<Wait()> start);

}  // namespace intarsia
