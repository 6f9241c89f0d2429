#pragma once
// What the program around us wants done while a collective waits for other ranks: Python lets its other threads run.

#include <memory>

namespace intarsia {

// Makes a guard that is held until the collective has finished. Set once, before the first collective.
using AroundWaits = std::shared_ptr<void> (*)();
void set_around_waits(AroundWaits make_guard);

// The guard; null where nothing was set.
std::shared_ptr<void> around_waits();

}  // namespace intarsia
