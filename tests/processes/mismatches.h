#pragma once
// Scenes in which one rank runs another collective than the others.

namespace intarsia {

// Plays all of them, one behind the other, and prints what each rank is told.
void play_mismatches();

}  // namespace intarsia
