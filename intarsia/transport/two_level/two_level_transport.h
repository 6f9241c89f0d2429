#pragma once
// The transport in two levels: shared memory inside the hosts, gloo between them.

#include <memory>

#include "intarsia/transport/gloo/gloo_transport.h"
#include "intarsia/transport/transport.h"

namespace intarsia {

// Carries lines over several hosts, some of them with several ranks side by side. See Note [Two levels].
std::shared_ptr<const Transport> make_two_level_transport(std::shared_ptr<const GlooTransport> gloo);

}  // namespace intarsia
