#pragma once
// The entries of the flight recorder in the formats of other programs.

#include <string>
#include <vector>

#include "intarsia/watch/flight_recorder.h"
#include "intarsia/watch/ticks.h"

namespace intarsia {

// What PyTorch's own flight recorder dumps for one rank: a pickle of entries and groups.
std::string flights_as_pickle(const std::vector<FlightEntry>& flights, const TickScale& scale);

// Chrome's trace events: each collective from its begin to its end, and when threads waited for it.
std::string flights_as_timeline(const std::vector<FlightEntry>& flights, const TickScale& scale);

}  // namespace intarsia
