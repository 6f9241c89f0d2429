#pragma once
// Runs one collective: starts it, waits for it, records it in the trace, and adds context to its errors.

#include <cstdint>
#include <string>

#include <c10/util/FunctionRef.h>

#include "intarsia/comm/engine.h"

namespace intarsia {

// Starts a collective of `engine` along `line` with `start`, and waits for it, or leaves that to the caller if there is
// a `wait`, which points to an empty one. `sent` and `received` are the most bytes that a slot exchanges with others,
// for the trace.
void run_collective(const Engine& engine, const Line& line, std::string kind, int64_t sent, int64_t received,
                    Wait* wait, c10::function_ref<Wait()> start);

// The same for an agreement, which is not recorded as a collective, and has finished on return.
void run_collective_unrecorded(const Engine& engine, const Line& line, const std::string& kind,
                               c10::function_ref<Wait()> start);

}  // namespace intarsia
