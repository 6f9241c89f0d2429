#include "intarsia/nn/born_sharded.h"

#include <torch/nn/module.h>

#include "intarsia/core/overloaded.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/start.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// Shards the first dim that is long enough for all ranks, or else the longest.
Placements shared_by_all(const DeviceMesh& mesh, at::IntArrayRef sizes) {
  if (sizes.empty()) return Placements(mesh.ndim(), Replicate());
  auto dim = std::find_if(sizes.begin(), sizes.end(), [&](auto size) { return size >= mesh.size(); });
  if (dim == sizes.end()) dim = std::max_element(sizes.begin(), sizes.end());
  return Placements(mesh.ndim(), Shard(dim - sizes.begin()));
}

template <class Body>
void for_each_tensor_in(const torch::nn::Module& module, Body body) {
  for (auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (auto& item : tensors) {
      if (item.value().defined()) body(item.key(), item.value());
    }
  }
}

void lay_out_by_name(torch::nn::Module& module, const DeviceMesh& mesh, const BornSharded::ByName& plan) {
  MovingParameters moving;
  for_each_tensor_in(module,
                     [&](auto& name, auto& tensor) { distribute_parameter(tensor, mesh, plan(name, tensor.sizes())); });
}

// Entry by entry, so that only what one entry redistributes is in memory twice.
void lay_out_by_styles(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan) {
  MovingParameters moving;
  for (auto& entry : plan.entries()) parallelize_module(module, mesh, ParallelPlan(std::vector{entry}));
  for_each_tensor_in(module, [&](auto&, auto& tensor) {
    if (is_dtensor(tensor) && !moving.has_moved(tensor)) tensor.set_data(full_tensor(tensor.detach()));
  });
}

}  // namespace

BornSharded::BornSharded(const DeviceMesh& mesh) : BornSharded(mesh, Plan(), 0) {}
BornSharded::BornSharded(const DeviceMesh& mesh, ParallelPlan plan) : BornSharded(mesh, Plan(std::move(plan)), 0) {}
BornSharded::BornSharded(const DeviceMesh& mesh, ByName plan) : BornSharded(mesh, Plan(std::move(plan)), 0) {}

BornSharded::BornSharded(const DeviceMesh& mesh, Plan plan, int)
    : place_{mesh, [mesh](at::IntArrayRef sizes) { return shared_by_all(mesh, sizes); }}, plan_(std::move(plan)) {
  start();
  random_.emplace(mesh);
  scope_.emplace(place_);
}

void BornSharded::finish(ModuleRef given) {
  auto& module = *given;
  TORCH_CHECK(scope_, "[BornSharded] the scope has ended: finish was called before.");
  scope_.reset();
  random_.reset();
  at::NoGradGuard no_grad;
  std::visit(
      overloaded{[](std::monostate) {}, [&](const ParallelPlan& plan) { lay_out_by_styles(module, place_.mesh, plan); },
                 [&](const ByName& plan) { lay_out_by_name(module, place_.mesh, plan); }},
      plan_);
}

}  // namespace intarsia
