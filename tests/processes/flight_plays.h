#pragma once
// Scenes for the tests of the flight recorder.

namespace intarsia {

void play_flights();       // one of each kind; the last is under way for 0.2 s before it is waited for
void play_one_mismatch();  // collective 5 is another one on rank 1; all ranks go on afterwards
void play_one_waits();     // rank 0 waits for 2 s in collective 1, for which rank 1 is late

}  // namespace intarsia
