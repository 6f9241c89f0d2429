#pragma once
// fully_shard: data parallelism with parameters, gradients and optimizer states in shards. Each rank keeps a part of
// every parameter, and the whole is in memory only while it is used.
//
//   auto mesh = init_device_mesh(kCPU, {4}, {"dp"});
//   for (auto& layer : *model->layers) fully_shard(*layer, mesh);
//   fully_shard(*model, mesh);                                 // the parameters that are left
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);  // on shards
//   loss_of(model, my_part_of_the_batch).backward();           // gradients are averaged, in shards
//   optimizer.step();
//
// Each call makes a group of the parameters that are in no group yet: they are gathered together before first use, in
// forward and in backward, and reduced together. It works on every torch::nn module, see Note [Gathered at first use];
// a module with hooks (INTARSIA_MODULE) is gathered when its forward begins and freed when it ends. A parameter remains
// the same leaf: members, dictionaries and optimizers made before stay valid.
//
// A parameter may already be distributed: over other axes (parallelize_module(*model, mesh["tp"], ...)), or over a mesh
// that also has these axes; it is sharded once more between uses, and has its original layout while it is whole. See
// Note [Sharded twice], and for gradients that are pending along these axes Note [Terms of an average].

#include <cstdint>
#include <memory>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/data_parallel/fully_shard/fully_shard_options.h"
#include "intarsia/nn/module_ref.h"

namespace intarsia {

class ParamGroup;

// A group of parameters. A handle: it may be dropped, and sharded_by returns it again.
class Sharded {
 public:
  explicit Sharded(std::shared_ptr<ParamGroup> group) : group_(std::move(group)) {}

  // The parameters themselves are the whole until reshard(), the forward of a module with hooks that reshards after it,
  // or backward.
  void unshard();
  void begin_unshard();  // the wait is at first use
  void reshard();
  bool is_whole() const;
  int64_t bytes() const;  // of the whole

  void set_requires_gradient_sync(bool syncs);  // without, gradients of the whole add up on each rank: [P(avg)]
  // Without, on a mesh of two axes, gradients are reduced over the shards and add up; the next pass with it averages
  // the sum over the copies.
  void set_requires_all_reduce(bool reduces);
  void set_reshard_after_forward(bool reshards);
  void set_reshard_after_backward(bool reshards);
  // Gradients are the sum over all ranks divided by this; default: the number of ranks.
  void set_gradient_divide_factor(double factor);
  void set_unused_as_zeros(bool zeros);  // like the option
  // The groups to prefetch when this one is gathered, the same on all ranks; if none are set, the one that came next in
  // the last step.
  void set_forward_prefetch(const std::vector<Sharded>& groups);
  void set_backward_prefetch(const std::vector<Sharded>& groups);

 private:
  void set_prefetch(bool in_backward, const std::vector<Sharded>& groups);
  std::shared_ptr<ParamGroup> group_;
};

// All ranks call it together. The mesh has one axis, or two: copies along the first, shards along the second.
// A module whose parameters are all in groups already, or that has none, gets no group, and its handle does nothing.
Sharded fully_shard(ModuleRef module, const DeviceMesh& mesh, const FullyShardOptions& options = {});
// One group for several modules.
Sharded fully_shard(const std::vector<torch::nn::Module*>& modules, const DeviceMesh& mesh,
                    const FullyShardOptions& options = {});

// Of a module that fully_shard was called on.
Sharded sharded_by(ConstModuleRef module);

// Of all groups with parameters in the module, submodules included.
std::vector<Sharded> groups_in(ConstModuleRef module);

}  // namespace intarsia
