#pragma once
// Reports of the flight recorder: on stderr after a failed collective or a signal, and in files.

#include <string>

namespace intarsia {

// The last `most` entries of this process, a line each.
std::string flight_report(size_t most);

// Writes, for rank R, `folder`/flight_R, which `python -m torch.distributed.flight_recorder.fr_trace folder` reads, and
// `folder`/timeline.R.json, which chrome://tracing and Perfetto read. Creates the folder; errors name the file.
void write_flights(const std::string& folder);

// Call this when a collective has failed: reports once per world, and writes the files if INTARSIA_FLIGHT_FOLDER is
// set. Never throws.
void report_failure() noexcept;

// From now on SIGUSR1 makes the process report, unless the program has a handler for it or INTARSIA_FLIGHT_SIGNAL is 0.
void report_on_signal();

// Writes the files if INTARSIA_FLIGHT_FOLDER is set: the process leaves its world. Never throws.
void write_last_flights() noexcept;

}  // namespace intarsia
