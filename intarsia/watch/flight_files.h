#pragma once
// The entries of the flight recorder in file formats of other programs.

#include <string>
#include <vector>

#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/ticks.h"

namespace intarsia {

// The format of PyTorch's flight recorder for one rank: a pickle of entries and groups.
std::string flights_as_pickle(const std::vector<FlightEntry>& flights, const TickScale& scale);

// Chrome's trace events: each collective from its begin to its end, and the waits of threads.
std::string flights_as_timeline(const std::vector<FlightEntry>& flights, const TickScale& scale);

}  // namespace intarsia
