#include "intarsia/comm/engine.h"

#include <c10/util/Exception.h>

#include "intarsia/comm/simulation.h"

namespace intarsia {

const Engine& engine_of(const World& world) {
  if (&world == &world_of_one()) return simulation_of(1);
  auto* engine = dynamic_cast<const Engine*>(&world);
  TORCH_INTERNAL_ASSERT(engine, "no engine serves ", world.text());
  return *engine;
}

}  // namespace intarsia
