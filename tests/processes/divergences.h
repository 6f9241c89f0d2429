#pragma once
// Ranks that run equal collectives on different tensors: programs of which one rank leaves out a call, or makes another
// one.

namespace intarsia {

// Tries those whose place in the list is INTARSIA_SHARE of every INTARSIA_SHARES, and prints what each rank is told.
void play_divergences();

// What ranks may do each for itself: prints a line that is the same on all of them.
void play_allowed_differences();

}  // namespace intarsia
