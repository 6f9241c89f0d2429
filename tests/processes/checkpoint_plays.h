#pragma once
// Scenes of saving for as long as nobody kills the process, and of looking at what is there then. See
// tests/cli/checkpoint_kill_test.py.

namespace intarsia {

// Saves step after step into INTARSIA_TEST_FOLDER, every other one asynchronously.
void play_saves();

// Saves step 1.
void play_save_once();

// Loads the newest checkpoint there and compares every bit with what its step has to hold; prints the step.
void play_check();

}  // namespace intarsia
