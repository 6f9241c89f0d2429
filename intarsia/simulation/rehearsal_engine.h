#pragma once
// An engine for rehearsals of a job on one process: it hosts the first rank, and all others are taken to do the same.

#include <cstdint>

namespace intarsia {

class Engine;

// The engine of `n` such ranks, of which this process hosts the first. One per size, so that meshes of equal worlds are
// equal. Numbers that ranks exchange come back as if all had said the same; tensors without data stay as they are.
const Engine& rehearsal_engine(int64_t n);

}  // namespace intarsia
