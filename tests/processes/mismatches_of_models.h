#pragma once
// Ranks that differ while they train: in forward, backward and optimizer, on other meshes, in threads.

#include <vector>

#include "tests/processes/mismatches.h"

namespace intarsia {

std::vector<Mismatch> mismatches_of_models();

}  // namespace intarsia
