#pragma once
// A group that uses its backend's collectives.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/gloo/members.h"

namespace intarsia {

// For NCCL and all others. The members are all ranks of the backend.
std::unique_ptr<Group> make_collective_group(SharedMembers members);

}  // namespace intarsia
