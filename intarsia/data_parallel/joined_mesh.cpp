#include "intarsia/data_parallel/joined_mesh.h"

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

DeviceMesh joined_mesh(const std::string& name, const DeviceMesh& outer, const at::Tensor& leaf, std::optional<int64_t> dim) {
  auto& inner = mesh_of(leaf);
  TORCH_CHECK_NOT_IMPLEMENTED(inner.ndim() == 1, "[fully_shard] \"", name, "\" lies on ", inner.text(),
                              ". A parameter may be cut over one axis before.");
  bool both = dim && cut_dim(placements_of(leaf)[0]) == *dim;
  bool inner_last = !both || leaf.size(*dim) % (inner.size() * outer.size(-1)) == 0;
  auto count = outer.size() * inner.size();
  std::vector<int64_t> grid(count, -1);
  for (auto rank : inner.ranks()) {
    auto out = outer.coordinate_of(rank), in = inner.coordinate_of(rank);
    int64_t place = 0;
    for (int64_t axis = 0; out && axis < outer.ndim(); ++axis) place = place * outer.size(axis) + (*out)[axis];
    place = inner_last ? place * inner.size() + (*in)[0] : (*in)[0] * outer.size() + place;
    TORCH_CHECK_VALUE(out && grid[place] < 0, "[fully_shard] \"", name, "\" lies on ", inner.text(),
                      ", which does not make a grid with ", outer.text(), ". Both must be slices of one mesh.");
    grid[place] = rank;
  }
  auto shape = outer.shape().vec();
  std::vector<std::string> names;
  for (int64_t axis = 0; axis < outer.ndim(); ++axis) names.push_back(outer.axis_name(axis));
  shape.insert(inner_last ? shape.end() : shape.begin(), inner.size());
  names.insert(inner_last ? names.end() : names.begin(), inner.axis_name(0));
  return DeviceMesh(outer.device_type(), shape, grid, names);
}

}  // namespace intarsia
