#pragma once
// The transport over shared memory.

#include <memory>

#include "intarsia/transport/transport.h"

namespace intarsia {

// Carries lines whose ranks share a host.
std::shared_ptr<const Transport> make_shm_transport();

}  // namespace intarsia
