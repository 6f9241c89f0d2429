#pragma once
// A group whose members exchange bytes through memory that they share.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/comm/shm/traffic.h"

namespace intarsia {

// Reduces in the order of the line whatever the size, and now as later: the same bits as gloo and the simulation.
std::unique_ptr<Group> make_shm_group(SharedLine line);

}  // namespace intarsia
