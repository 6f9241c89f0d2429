#pragma once
// An engine that rehearses a job in one process: it hosts the first rank, and assumes that all others do the same.

#include <cstdint>

namespace intarsia {

class Engine;

// The engine of `n` ranks, of which this process hosts the first. One per size, so that meshes of equal worlds are
// equal. Exchanged numbers come back as if all ranks had sent the same; tensors without data stay as they are.
const Engine& rehearsal_engine(int64_t n);

}  // namespace intarsia
