#pragma once
// A guard that the program installs around waits for other ranks: Python lets its other threads run meanwhile.

#include <memory>

namespace intarsia {

// Installs the function that makes the guard, which is held until the collective has finished. Call it once, before the
// first collective.
using AroundWaits = std::shared_ptr<void> (*)();
void set_around_waits(AroundWaits make_guard);

// Makes the guard; null if no function is installed.
std::shared_ptr<void> around_waits();

}  // namespace intarsia
