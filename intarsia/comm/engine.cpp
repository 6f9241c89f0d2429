#include "intarsia/comm/engine.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/reduce.h"
#include "intarsia/comm/simulation.h"

namespace intarsia {
namespace {

// `parts` are the parts of all members, one behind the other.
void reduce_parts(const at::Tensor& parts, int64_t n, at::Tensor result, ReduceOp op) {
  auto part = parts.view({n, result.numel()});
  if (n == 1) result.copy_(part[0]);
  for (int64_t j = 1; j < n && result.numel(); ++j) reduce(result, j == 1 ? part[0] : result, part[j], op);
}

}  // namespace

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
