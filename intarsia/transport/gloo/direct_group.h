#pragma once
// A group whose collectives are made of messages between its members.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/gloo/messages.h"

namespace intarsia {

// For backends whose send and recv work side by side, as gloo's do: see Note [Direct exchange].
std::unique_ptr<Group> make_direct_group(SharedMembers members);

}  // namespace intarsia
