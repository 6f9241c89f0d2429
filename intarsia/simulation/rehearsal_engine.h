#pragma once
// A world that is seen from its first rank alone, for rehearsals: all others are taken to do as it does.

#include <cstdint>

namespace intarsia {

class Engine;

// The engine of `n` such ranks, of which this process hosts the first. One per size, so that meshes of equal worlds are equal.
// Numbers that ranks exchange come back as if all had said the same; tensors without data stay as they are.
const Engine& rehearsal_engine(int64_t n);

}  // namespace intarsia
