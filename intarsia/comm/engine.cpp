#include "intarsia/comm/engine.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/simulation.h"

namespace intarsia {
Wait Engine::reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                            ReduceOp op) const {
  Shards parts;
  Counts part_counts;
  for (size_t slot = 0; slot < send.size(); ++slot) {
    auto mine = counts[slot][line.position[slot]];
    parts.push_back(at::empty({mine * line.size}, send[slot].options()));
    part_counts.emplace_back(line.size, mine);
  }
  return then(all_to_all(line, send, counts, parts, part_counts), [parts, result, op, n = line.size] {
    for (size_t slot = 0; slot < parts.size(); ++slot) reduce_parts(parts[slot], n, result[slot], op);
  });
}

const Engine& engine_of(const World& world) {
  if (&world == &world_of_one()) return simulation_of(1);
  auto* engine = dynamic_cast<const Engine*>(&world);
  TORCH_INTERNAL_ASSERT(engine, "no engine serves ", world.text());
  return *engine;
}

}  // namespace intarsia
