#pragma once
// Constructs models with distributed parameters: no rank ever holds a whole one.
//
//   torch::manual_seed(7);                                  // on every rank
//   BornSharded scope(mesh, {{"layers.*.fc1", ColwiseParallel()}, {"layers.*.fc2", RowwiseParallel()}});
//   auto model = Llama(options);                            // plain torch::nn; the numbers are those of one device
//   scope.finish(*model);  // names are known now: each parameter gets the layout in the plan

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "intarsia/dispatch/factory_scope.h"
#include "intarsia/dispatch/random_scope.h"
#include "intarsia/nn/parallelize_module.h"

namespace intarsia {

// Note [Born sharded]
// A module creates its parameters before it has a name in a model: torch::empty, then an initializer. In the scope,
// each tensor of a given size is created in parts, one for each rank of the mesh, sharded along the first dim that is
// long enough; each rank draws its own part of the stream of one device. Tensors without a size (arange) are created
// replicated. `finish` redistributes parameter by parameter. The scope is for this thread. It contains a RandomScope:
// seed all ranks with the same seed.
class BornSharded {
 public:
  // The placements of a parameter or buffer, by its name in the model and its shape.
  using ByName = std::function<Placements(const std::string& name, at::IntArrayRef shape)>;

  // Everything keeps its initial layout, for fully_shard, or for a model that is used in that layout.
  explicit BornSharded(const DeviceMesh& mesh);
  BornSharded(const DeviceMesh& mesh, ParallelPlan plan);  // the mesh has one axis
  BornSharded(const DeviceMesh& mesh, ByName plan);

  // Ends the scope, and brings the module to the layouts of the plan. With a ParallelPlan, parameters and buffers that
  // the plan does not name become plain and whole on every rank, as parallelize_module leaves them.
  void finish(ModuleRef module);
  template <ModuleOwner Holder>
  Holder finish(Holder holder) {
    finish(ModuleRef(holder));
    return holder;
  }

 private:
  using Plan = std::variant<std::monostate, ParallelPlan, ByName>;
  BornSharded(const DeviceMesh& mesh, Plan plan, int);

  FactoryLayout place_;
  Plan plan_;
  std::optional<RandomScope> random_;
  std::optional<FactoryScope> scope_;
};

}  // namespace intarsia
