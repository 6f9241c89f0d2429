#pragma once
// When the asynchronous collectives of a simulation move their bytes, on this thread.

#include <functional>

#include "intarsia/comm/wait.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia {

// The present setting, and a way to change it.
Arrival arrives();
Arrival set_arrival(Arrival arrival);  // returns the one before

// Moves the bytes of a collective that starts now, at the time that the setting says; the Wait is empty if they have
// moved.
Wait arriving(std::function<void()> move);

// Finishes all collectives that have not arrived yet.
void arrive_all();

}  // namespace intarsia
