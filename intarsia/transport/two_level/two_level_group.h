#pragma once
// A group over several hosts with several ranks on each: memory inside the hosts, gloo between them.

#include <memory>

#include "intarsia/comm/group.h"
#include "intarsia/transport/two_level/levels.h"

namespace intarsia {

// See Note [Two levels]. The same bits as gloo and the simulation.
std::unique_ptr<Group> make_two_level_group(Levels levels);

}  // namespace intarsia
