#include "intarsia/data_parallel/fully_shard/joined_mesh.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <c10/util/accumulate.h>

namespace intarsia {
namespace {

// `ranks` of one or more groups, row-major; see Note [Groups of a mesh].
DeviceMesh side_by_side(c10::DeviceType device, std::vector<int64_t> shape, const std::vector<int64_t>& ranks,
                        std::vector<std::string> names) {
  auto groups = static_cast<int64_t>(ranks.size()) / c10::multiply_integers(shape);
  if (groups == 1) return DeviceMesh(device, std::move(shape), ranks, std::move(names));
  AxisList axes(shape.size());
  std::iota(axes.begin(), axes.end(), 1);
  shape.insert(shape.begin(), groups);
  names.insert(names.begin(), "");
  return DeviceMesh(device, std::move(shape), ranks, std::move(names)).slice_axes(axes);
}

// The lowest rank that is reached from each rank along either mesh.
std::map<int64_t, int64_t> corners(const DeviceMesh& outer, const DeviceMesh& inner) {
  std::map<int64_t, int64_t> corner;
  for (auto rank : inner.ranks()) corner[rank] = rank;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto* mesh : {&outer, &inner}) {
      for (int64_t group = 0; group < mesh->group_count(); ++group) {
        auto lowest = mesh->ranks(group)[0];
        for (auto rank : mesh->ranks(group)) lowest = std::min(lowest, corner.count(rank) ? corner[rank] : rank);
        for (auto rank : mesh->ranks(group)) {
          if (corner.count(rank) && corner[rank] != lowest) corner[rank] = lowest, changed = true;
        }
      }
    }
  }
  return corner;
}

int64_t place_on(const DeviceMesh& mesh, const std::vector<int64_t>& coordinate) {
  int64_t place = 0;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) place = place * mesh.size(axis) + coordinate[axis];
  return place;
}

}  // namespace

DeviceMesh regrouped(const DeviceMesh& mesh, const std::vector<AxisList>& lists) {
  AxisList order;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  for (auto& list : lists) {
    shape.push_back(1);
    names.emplace_back();
    for (auto axis : list) {
      order.push_back(axis);
      shape.back() *= mesh.size(axis);
      names.back() += (names.back().empty() ? "" : "_") + mesh.axis_name(axis);
    }
  }
  return side_by_side(mesh.device_type(), shape, mesh.slice_axes(order).ranks().vec(), names);
}

DeviceMesh data_mesh(const DeviceMesh& full, const std::vector<std::string>& replicate,
                     const std::vector<std::string>& shard) {
  WorldScope world(full.world());
  std::vector<AxisList> lists;
  for (auto* names : {&replicate, &shard}) {
    if (names->empty()) continue;
    auto& list = lists.emplace_back();
    for (auto& name : *names) list.push_back(full.axis_of(name));
  }
  return regrouped(full, lists);
}

DeviceMesh joined_mesh(const std::string& name, const DeviceMesh& outer, const DeviceMesh& inner) {
  auto corner = corners(outer, inner);
  std::map<int64_t, int64_t> group;  // by its lowest rank
  for (auto& [rank, lowest] : corner) group.emplace(lowest, static_cast<int64_t>(group.size()));
  auto count = outer.size() * inner.size();
  std::vector<int64_t> ranks(inner.ranks().size(), -1);
  bool fits = ranks.size() == group.size() * count;
  for (auto rank : inner.ranks()) {
    auto out = outer.coordinate_of(rank), in = inner.coordinate_of(rank);
    fits = fits && out;
    if (!fits) break;
    auto& room = ranks[group[corner[rank]] * count + place_on(outer, *out) * inner.size() + place_on(inner, *in)];
    fits = room < 0;
    room = rank;
  }
  TORCH_CHECK_VALUE(fits, "[fully_shard] \"", name, "\" lies on ", inner.text(), ", which does not make a grid with ",
                    outer.text(), ". Both must be slices of one mesh.");
  auto shape = outer.shape().vec();
  shape.insert(shape.end(), inner.shape().begin(), inner.shape().end());
  std::vector<std::string> names;
  for (auto* mesh : {&outer, &inner}) {
    for (int64_t axis = 0; axis < mesh->ndim(); ++axis) names.push_back(mesh->axis_name(axis));
  }
  return side_by_side(outer.device_type(), shape, ranks, names);
}

}  // namespace intarsia
