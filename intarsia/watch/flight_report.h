#pragma once
// The reports of the flight recorder: on stderr when a collective fails or a signal asks, and in files.

#include <string>

namespace intarsia {

// The last `most` entries of this process, a line each.
std::string flight_report(size_t most);

// Writes, for rank R, `folder`/flight_R, which `python -m torch.distributed.flight_recorder.fr_trace folder` reads, and
// `folder`/timeline.R.json, which chrome://tracing and Perfetto read. Makes the folder; errors name the file.
void write_flights(const std::string& folder);

// A collective has failed: reports once per world, and writes the files where INTARSIA_FLIGHT_FOLDER says so. Never
// throws.
void report_failure() noexcept;

// From now on SIGUSR1 makes the process report, unless the program has a handler of its own or INTARSIA_FLIGHT_SIGNAL
// is 0.
void report_on_signal();

// Where INTARSIA_FLIGHT_FOLDER says so, writes the files: the process leaves its world. Never throws.
void write_last_flights() noexcept;

}  // namespace intarsia
