#pragma once
// A training that Python began and goes on with.

namespace intarsia {

// For every folder in INTARSIA_TEST_FOLDER, which is called as the optimizer: goes on from its checkpoint `python` for
// two steps, and saves `cpp`.
void play_train_on();

}  // namespace intarsia
