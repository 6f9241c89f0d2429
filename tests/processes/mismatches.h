#pragma once
// Ranks that run different collectives.

#include <functional>

#include "intarsia/comm/axis.h"

namespace intarsia {

struct Mismatch {
  const char* name;
  std::function<void(const Axis&)> most, one;  // what rank 1 does
  bool late = false;  // ranks that wait on different lines may be right, so it is told when the time is over
};

// Tries those whose place in the list is INTARSIA_SHARE of every INTARSIA_SHARES, and prints what each rank is told.
void play_mismatches();

}  // namespace intarsia
