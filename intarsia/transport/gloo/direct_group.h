#pragma once
// A group whose collectives are made of messages between its members.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/gloo/messages.h"

namespace intarsia {

// For backends whose sends and receives run concurrently, as gloo's do: see Note [Direct exchange].
std::unique_ptr<Group> make_direct_group(std::shared_ptr<DirectLine> line);

}  // namespace intarsia
