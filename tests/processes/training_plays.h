#pragma once
// Training that rank 1 does not survive.

namespace intarsia {

// INTARSIA_STRIKE says where (forward, backward, optimizer), INTARSIA_STRIKE_STEP in which step.
void play_replicated_training();
void play_sharded_training();

}  // namespace intarsia
