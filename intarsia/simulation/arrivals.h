#pragma once
// When collectives that a simulation only begins move their bytes, on this thread.

#include <functional>

#include "intarsia/comm/wait.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia {

Arrival arrives();
Arrival set_arrival(Arrival arrival);  // returns the one before

// Moves the bytes of a collective that begins now, when they are to arrive; empty if they have.
Wait arriving(std::function<void()> move);

// All that have not arrived yet.
void arrive_all();

}  // namespace intarsia
