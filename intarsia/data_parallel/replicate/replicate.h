#pragma once
// replicate: data parallelism with a whole model on every rank, whose gradients are averaged in every backward pass.
//
//   auto mesh = init_device_mesh(kCPU, {4}, {"dp"});
//   replicate(*model, mesh);
//   loss_of(model, my_part_of_the_batch).backward();  // gradients are those of the mean of all ranks' losses
//   optimizer.step();
//
// The module is changed in place, whatever its type: parameters stay the same tensors, and state dicts look as before.
// In a simulation, values that differ by rank (the batch, the gradients before they are averaged, statistics of batch
// norms) are per-rank tensors.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/data_parallel/replicate/comm_hooks.h"
#include "intarsia/data_parallel/replicate/replicate_options.h"
#include "intarsia/nn/module_ref.h"

namespace intarsia {

class Reducer;

// A replicated module. A handle: it may be dropped, and replica_of returns it again.
class Replica {
 public:
  explicit Replica(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {}

  const DeviceMesh& mesh() const;

  // Whether backward passes average gradients. Without, they add up on each rank, and the next pass with sync averages
  // all.
  void set_requires_gradient_sync(bool syncs);

  // Replaces the average of each bucket: see CommHook, and compress_to for two of them.
  void register_comm_hook(CommHook hook);

  // For ranks that have different numbers of batches: runs `body`, the training loop; then takes part in the steps of
  // the ranks that have more, with gradients of zero. At the end all have the model of the rank that made the most
  // steps. An average is over all ranks, or with `divide_by_initial_world_size` false over those that still have
  // batches.
  void join(const std::function<void()>& body, bool divide_by_initial_world_size = true);

  // The names of the parameters whose gradients are sent together, in the order of sending.
  std::vector<std::vector<std::string>> buckets() const;

 private:
  std::shared_ptr<Reducer> reducer_;
};

// All ranks call it together. The mesh has one axis. Parameters of submodules that are already replicated stay with
// those.
Replica replicate(ModuleRef module, const DeviceMesh& mesh, const ReplicateOptions& options = {});
// Over the whole world.
Replica replicate(ModuleRef module, const ReplicateOptions& options = {});

// The handle of a module on which replicate was called.
Replica replica_of(ConstModuleRef module);

// While it lives, backward passes through the module and its submodules average nothing.
class NoSync {
 public:
  explicit NoSync(ConstModuleRef module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::vector<std::shared_ptr<Reducer>> reducers_;  // that averaged before
};

}  // namespace intarsia
