#include "intarsia/job/from_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "intarsia/job/init.h"
#include "intarsia/job/job_engine.h"

namespace intarsia {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// The members' ranks in the world, in the order of the group, which only knows its own numbering.
std::vector<int64_t> ranks_of(const BackendPtr& group, int64_t rank, c10::DeviceType device) {
  auto mine = at::full({1}, rank, at::TensorOptions(at::kLong).device(device));
  auto all = at::empty({group->getSize()}, mine.options());
  group->_allgather_base(all, mine)->wait();
  all = all.cpu();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

DeviceMesh adopt_all(const std::vector<BackendPtr>& groups, c10::DeviceType device, std::vector<int64_t> shape,
                     std::vector<int64_t> ranks, std::vector<std::string> names) {
  auto& engine = engine_with_groups("mesh_from_groups", current_world("mesh_from_groups"));
  DeviceMesh mesh(device, std::move(shape), std::move(ranks), std::move(names));
  TORCH_CHECK_VALUE(static_cast<int64_t>(groups.size()) == mesh.ndim(), "[mesh_from_groups] ", groups.size(),
                    " groups were given for ", mesh.text(), ", which has ", mesh.ndim(),
                    " axes. Give one group per axis.");
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[mesh_from_groups] rank ", engine.hosted()[0], " is not on ", mesh.text(),
                    ". Only its ranks call this.");
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    auto line = mesh.line(mesh.slots()[0], {axis});
    auto members = ranks_of(groups[axis], engine.hosted()[0], device);
    TORCH_CHECK_VALUE(line == members, "[mesh_from_groups] the group for axis ", mesh.axis_name(axis),
                      " has the ranks ", c10::ArrayRef<int64_t>(members), ", but the line of rank ", engine.hosted()[0],
                      " on ", mesh.text(), " has ", c10::ArrayRef<int64_t>(line), ". Make them agree, in order too.");
    engine.adopt(line, groups[axis]);
  }
  return mesh;
}

DeviceMesh adopt_one(const BackendPtr& group, c10::DeviceType device, const std::string& name) {
  auto& engine = engine_with_groups("mesh_from_group", current_world("mesh_from_group"));
  auto ranks = ranks_of(group, engine.hosted()[0], device);
  engine.adopt(ranks, group);
  auto size = static_cast<int64_t>(ranks.size());
  return DeviceMesh(device, {size}, std::move(ranks),
                    name.empty() ? std::vector<std::string>{} : std::vector<std::string>{name});
}

}  // namespace

DeviceMesh mesh_from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::DeviceType device,
                           const std::string& name) {
  if (!process_world()) init_from_group(group);
  return adopt_one(group->getBackend(device), device, name);
}

DeviceMesh mesh_from_group(const BackendPtr& group, c10::DeviceType device, const std::string& name) {
  if (!process_world()) init_from_group(group);
  return adopt_one(group, device, name);
}

DeviceMesh mesh_from_groups(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups, c10::DeviceType device,
                            std::vector<int64_t> shape, std::vector<int64_t> ranks, std::vector<std::string> names) {
  std::vector<BackendPtr> backends;
  for (auto& group : groups) backends.push_back(group->getBackend(device));
  return adopt_all(backends, device, std::move(shape), std::move(ranks), std::move(names));
}

DeviceMesh mesh_from_groups(const std::vector<BackendPtr>& groups, c10::DeviceType device, std::vector<int64_t> shape,
                            std::vector<int64_t> ranks, std::vector<std::string> names) {
  return adopt_all(groups, device, std::move(shape), std::move(ranks), std::move(names));
}

}  // namespace intarsia
