#include "intarsia/ops/along/joint_mesh.h"

#include <algorithm>
#include <map>

#include <c10/util/Exception.h>

#include "intarsia/dispatch/numbers.h"

namespace intarsia {
namespace {

// Ranks that share a group on one of the meshes, directly or through others; ascending, and so are the groups.
std::vector<std::vector<int64_t>> connected_ranks(const std::vector<DeviceMesh>& meshes) {
  std::map<int64_t, int64_t> lowest;  // by rank: a rank that it is connected with, in the end the lowest one
  auto root = [&](int64_t rank) {
    while (lowest.at(rank) != rank) rank = lowest.at(rank);
    return rank;
  };
  for (auto& mesh : meshes) {
    for (int64_t group = 0; group < mesh.group_count(); ++group) {
      auto ranks = mesh.ranks(group);
      for (auto rank : ranks) lowest.emplace(rank, rank);
      for (auto rank : ranks) {
        auto a = root(rank), b = root(ranks[0]);
        lowest[std::max(a, b)] = std::min(a, b);
      }
    }
  }
  std::map<int64_t, std::vector<int64_t>> groups;
  for (auto& [rank, unused] : lowest) groups[root(rank)].push_back(rank);
  std::vector<std::vector<int64_t>> result;
  for (auto& [first, ranks] : groups) result.push_back(ranks);
  return result;
}

}  // namespace

DeviceMesh joint_mesh(const std::vector<DeviceMesh>& meshes, const char* op) {
  for (auto& mesh : meshes) {
    TORCH_CHECK(&mesh.world() == &meshes[0].world(), "[", op,
                "] its tensors lie on meshes of two worlds: ", meshes[0].text(), " of ", meshes[0].world().text(),
                "; and ", mesh.text(), " of ", mesh.world().text(),
                ". Make meshes and tensors of the current world anew.");
  }
  for (auto& mesh : meshes) {
    auto is_served = [&](auto& other) { return is_number_of(mesh, other); };
    if (std::all_of(meshes.begin(), meshes.end(), is_served)) return mesh;
  }
  std::vector<int64_t> ranks;
  auto groups = connected_ranks(meshes);
  for (auto& group : groups) {
    TORCH_CHECK_NOT_IMPLEMENTED(group.size() == groups[0].size(), "[", op, "] its tensors lie on meshes that connect ",
                                groups[0].size(), " ranks here and ", group.size(), " ranks there: ", meshes[0].text(),
                                " and others. ", "Bring them to one mesh first (redistribute).");
    ranks.insert(ranks.end(), group.begin(), group.end());
  }
  auto count = static_cast<int64_t>(groups.size()), size = static_cast<int64_t>(groups[0].size());
  auto device = meshes[0].device_type();
  if (count == 1) return DeviceMesh(device, {size}, ranks);
  return DeviceMesh(device, {count, size}, ranks).slice_axes({1});
}

}  // namespace intarsia
