#pragma once
// Flights in the formats of other programs.

#include <string>
#include <vector>

#include "intarsia/comm/flight/flight.h"
#include "intarsia/comm/flight/ticks.h"

namespace intarsia {

// What PyTorch's own flight recorder dumps for one rank: a pickle of entries and groups.
std::string flights_as_pickle(const std::vector<Flight>& flights, const TickScale& scale);

// Chrome's trace events: each collective from its begin to its end, and when threads waited for it.
std::string flights_as_timeline(const std::vector<Flight>& flights, const TickScale& scale);

}  // namespace intarsia
