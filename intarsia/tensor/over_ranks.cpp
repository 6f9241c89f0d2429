#include "intarsia/tensor/over_ranks.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/core/foreign.h"
#include "intarsia/core/world.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// The number of each hosted rank, as a plain or a per-rank tensor of double.
at::Tensor number_of(const char* where, const at::Tensor& given) {
  TORCH_CHECK_VALUE(given.defined() && given.numel() == 1, "[", where, "] needs one number per rank, but the tensor ",
                    given.defined() ? c10::str("has shape ", given.sizes()) : "is undefined",
                    ". Reduce it first, as by mean().");
  check_no_wrapper(given, where);
  TORCH_CHECK_TYPE(!given.is_meta() && !given.is_complex(), "[", where, "] needs a real number, but the tensor is ",
                   given.is_meta() ? "on the meta device and has no value." : "complex. Give its parts one by one.");
  auto number = given.detach();
  if (is_dtensor(number)) number = to_local(redistribute(number, Placements(mesh_of(number).ndim(), Replicate())));
  return number.to(at::kDouble).reshape({1});
}

// If this process hosts several groups of a mesh, all of them must come to one result.
double one_of(const char* where, const Shards& results, const DeviceMesh& mesh) {
  auto first = results[0].item<double>();
  for (auto& result : results) {
    auto other = result.item<double>();
    TORCH_CHECK_VALUE(other == first || (std::isnan(other) && std::isnan(first)), "[", where, "] the groups of ",
                      mesh.text(), " come to ", first, " and ", other, ", and this process plays all of them. ",
                      "Leave the mesh out, or give one whose only group is all ranks.");
  }
  return first;
}

double reduced(const char* where, const at::Tensor& given, const std::optional<DeviceMesh>& over, ReduceOp op) {
  at::NoGradGuard no_grad;
  auto& world = current_world(where);
  auto mine = number_of(where, given);
  auto mesh = over ? *over : init_device_mesh(c10::kCPU, {world.size()});
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[", where, "] rank ", world.hosted()[0], " is not on ", mesh.text(),
                    ". Only the ranks of the mesh call it.");
  auto& hosted = world.hosted();
  Shards numbers;
  for (auto& slot : mesh.slots()) {
    auto at = std::find(hosted.begin(), hosted.end(), slot.rank) - hosted.begin();
    numbers.push_back(value_at(mine, at).clone());
  }
  CauseScope cause(where, false);
  return one_of(where, Axis::whole(mesh).all_reduce(numbers, op), mesh);
}

}  // namespace

double mean_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh) {
  return reduced("mean_over_ranks", mine, mesh, ReduceOp::avg);
}
double sum_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh) {
  return reduced("sum_over_ranks", mine, mesh, ReduceOp::sum);
}
double max_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh) {
  return reduced("max_over_ranks", mine, mesh, ReduceOp::max);
}
double mean_over_ranks(double mine, const std::optional<DeviceMesh>& mesh) {
  return mean_over_ranks(at::scalar_tensor(mine, at::kDouble), mesh);
}
double sum_over_ranks(double mine, const std::optional<DeviceMesh>& mesh) {
  return sum_over_ranks(at::scalar_tensor(mine, at::kDouble), mesh);
}
double max_over_ranks(double mine, const std::optional<DeviceMesh>& mesh) {
  return max_over_ranks(at::scalar_tensor(mine, at::kDouble), mesh);
}

}  // namespace intarsia
