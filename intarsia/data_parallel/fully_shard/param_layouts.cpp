#include "intarsia/data_parallel/fully_shard/param_layouts.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/data_parallel/fully_shard/joined_mesh.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

bool contains(const AxisList& axes, int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// --- a mesh that has the axes of data parallelism

std::string joined_names(const DeviceMesh& mesh, const AxisList& axes) {
  std::string text;
  for (auto axis : axes) text += (text.empty() ? "" : "_") + mesh.axis_name(axis);
  return text;
}

bool has_lines_of(const DeviceMesh& mesh, const AxisList& axes, const DeviceMesh& line, int64_t along) {
  auto &own = mesh.slots(), &theirs = line.slots();
  bool same = own.size() == theirs.size();
  for (size_t s = 0; same && s < own.size(); ++s) {
    same = own[s].rank == theirs[s].rank && mesh.line(own[s], axes) == line.line(theirs[s], {along});
  }
  return same;
}

// The axes of `mesh` that, as one, are an axis of `outer`; none if there are none. Axes of one rank are distinguished
// by their names, and one of another name is another axis, even over the same ranks.
AxisList axes_along(const DeviceMesh& mesh, const DeviceMesh& outer, int64_t along) {
  AxisList best;
  for (int64_t set = 1; set < int64_t{1} << mesh.ndim(); ++set) {
    AxisList axes;
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      if (set >> axis & 1) axes.push_back(axis);
    }
    if (!has_lines_of(mesh, axes, outer, along)) continue;
    if (joined_names(mesh, axes) == outer.axis_name(along)) return axes;
    bool another = outer.size(along) == 1 || (axes.size() == 1 && !mesh.names().empty() && !outer.names().empty());
    if (!another && (best.empty() || axes.size() < best.size())) best = axes;
  }
  return best;
}

struct Within {
  AxisList shard, copies;
  AxisList all() const {
    auto axes = copies;
    axes.insert(axes.end(), shard.begin(), shard.end());
    return axes;
  }
};

std::optional<Within> find_within(const DeviceMesh& mesh, const ShardingAxes& axes) {
  Within found;
  for (int64_t along = 0; along < axes.mesh.ndim(); ++along) {
    auto own = axes_along(mesh, axes.mesh, along);
    if (own.empty()) return std::nullopt;
    (axes.replicate && along == 0 ? found.copies : found.shard) = own;
  }
  return found;
}

// --- what is to be sharded

struct Grid {
  DeviceMesh mesh;
  Placements placements;  // replicated along the axes of data parallelism
  int64_t shard = 0;
  AxisList data, copies;
};

// Several axes to shard along act as one, and copies before it as another.
Grid with_one_shard_axis(const Layout& whole, const Within& own) {
  Grid grid;
  std::vector<AxisList> lists;
  auto add = [&](const AxisList& list, const Placement& placement) {
    lists.push_back(list);
    grid.placements.push_back(placement);
    return static_cast<int64_t>(lists.size()) - 1;
  };
  auto data = own.all();
  for (int64_t axis = 0; axis < whole.mesh().ndim(); ++axis) {
    if (axis == own.shard[0]) {
      if (!own.copies.empty()) grid.copies = {add(own.copies, Replicate())};
      grid.shard = add(own.shard, Replicate());
    } else if (!contains(data, axis)) {
      add({axis}, whole.placements()[axis]);
    }
  }
  grid.mesh = regrouped(whole.mesh(), lists);
  grid.data = grid.copies;
  grid.data.push_back(grid.shard);
  return grid;
}

Grid grid_within(const Layout& whole, const Within& own) {
  if (own.shard.size() > 1) return with_one_shard_axis(whole, own);
  return {whole.mesh(), whole.placements(), own.shard.empty() ? 0 : own.shard[0], own.all(), own.copies};
}

Grid grid_of_outer(const ShardingAxes& axes) {
  AxisList all(axes.mesh.ndim());
  std::iota(all.begin(), all.end(), 0);
  return {axes.mesh, Placements(all.size(), Replicate()), axes.shard_axis, all,
          axes.replicate ? AxisList{0} : AxisList{}};
}

// --- the sharding

std::vector<int64_t> moved_to_end(std::vector<int64_t> values, int64_t index) {
  std::rotate(values.begin() + index, values.begin() + index + 1, values.end());
  return values;
}

// The same with the axis to shard along as the last one: it splits what the others have left.
Grid with_shard_axis_last(const Grid& grid) {
  AxisList order(grid.mesh.ndim());
  std::iota(order.begin(), order.end(), 0);
  order = moved_to_end(order, grid.shard);
  std::vector<AxisList> lists;
  Grid last;
  for (auto axis : order) lists.push_back({axis}), last.placements.push_back(grid.placements[axis]);
  last.mesh = regrouped(grid.mesh, lists);
  last.shard = grid.mesh.ndim() - 1;
  auto moved = [&](int64_t axis) { return std::find(order.begin(), order.end(), axis) - order.begin(); };
  for (auto axis : grid.data) last.data.push_back(moved(axis));
  for (auto axis : grid.copies) last.copies.push_back(moved(axis));
  return last;
}

ParamLayouts cut_plainly(Grid grid, int64_t dim) {
  grid.placements[grid.shard] = Shard(dim);
  return {Layout::get(grid.mesh, grid.placements), nullptr, grid.data, grid.copies, {}};
}

ParamLayouts cut(const Grid& grid, std::optional<int64_t> dim, at::IntArrayRef sizes) {
  if (!dim) return {Layout::get(grid.mesh, grid.placements), nullptr, grid.data, grid.copies, {}};
  int64_t blocks = 1;
  for (auto axis = grid.shard + 1; axis < grid.mesh.ndim(); ++axis) {
    if (cut_dim(grid.placements[axis]) == *dim) blocks *= grid.mesh.size(axis);
  }
  if (blocks == 1) return cut_plainly(grid, *dim);
  auto strided = grid.placements;
  strided[grid.shard] = StridedShard(*dim, blocks);
  auto* layout = Layout::get(grid.mesh, strided);
  auto last = cut_plainly(with_shard_axis_last(grid), *dim);
  for (int64_t position = 0; position < grid.mesh.size(); ++position) {
    auto coordinate = grid.mesh.coordinate_at(position);
    auto wanted = intervals_of(*last.shards, *dim, sizes[*dim], moved_to_end(coordinate, grid.shard));
    if (intervals_of(*layout, *dim, sizes[*dim], coordinate) != wanted) return last;
  }
  return {layout, nullptr, grid.data, grid.copies, {}};
}

}  // namespace

ShardingAxes ShardingAxes::of(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined() && (mesh.ndim() == 1 || mesh.ndim() == 2),
                    "[fully_shard] expects a mesh of one axis, or ", "of two (copies, shards), not ",
                    mesh.defined() ? mesh.text() : "none", ". Take a slice of it by name.");
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[fully_shard] this process takes no part in ", mesh.text(), ".");
  auto axis = mesh.ndim() - 1;
  return {mesh, axis, &Axis::of(mesh, axis), axis ? &Axis::of(mesh, 0) : nullptr, &Axis::whole(mesh)};
}

// The shards are along an axis of a single rank.
ShardingAxes ShardingAxes::replicated(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1 && !mesh.slots().empty(),
                    "[replicate] expects a mesh of one axis that this process takes ", "part in, not ", mesh.text(),
                    ". Take a slice of it by name.");
  WorldScope world(mesh.world());
  DeviceMesh grid(mesh.device_type(), {mesh.group_count(), mesh.size(), 1}, mesh.ranks().vec());
  return {mesh, 0, &Axis::of(grid, 2), &Axis::of(mesh, 0), &Axis::whole(mesh)};
}

bool lies_on(const at::Tensor& parameter, const DeviceMesh& mesh) {
  return is_dtensor(parameter) && mesh_of(parameter) == mesh;
}

bool is_cut_along(const at::Tensor& parameter, const ShardingAxes& axes) {
  if (!is_dtensor(parameter)) return false;
  if (!axes.on_full_mesh && lies_on(parameter, axes.mesh)) return true;
  auto own = find_within(mesh_of(parameter), axes);
  if (!own) return false;
  auto all = own->all();
  return std::any_of(all.begin(), all.end(), [&](auto axis) { return !is_replicate(placements_of(parameter)[axis]); });
}

ParamLayouts layouts_of_param(const std::string& name, const ShardingAxes& axes, const at::Tensor& parameter,
                              std::optional<int64_t> dim) {
  TORCH_CHECK_INDEX(!dim || (*dim >= 0 && *dim < parameter.dim()), "[fully_shard] \"", name, "\" has ", parameter.dim(),
                    " dims, so it cannot be sharded along dim ", dim.value_or(0),
                    ". Give one of its dims, counted from 0.");
  bool plain = !is_dtensor(parameter) || (!axes.on_full_mesh && lies_on(parameter, axes.mesh));
  TORCH_CHECK_VALUE(!plain || !is_dtensor(parameter) || !body_of(parameter).note, "[fully_shard] \"", name,
                    "\" is parallelized over ", axes.mesh.text(),
                    ", along which it is to be sharded. Use two axes of a mesh: parallelize_module over mesh[\"tp\"], "
                    "and fully_shard over mesh[\"dp\"].");
  if (plain) return cut(grid_of_outer(axes), dim, parameter.sizes());
  auto& mesh = mesh_of(parameter);
  auto placements = placements_of(parameter);
  if (auto own = find_within(mesh, axes)) {
    for (auto axis : own->all()) {
      TORCH_CHECK_VALUE(!is_partial(placements[axis]), "[fully_shard] \"", name, "\" is ", str(layout_of(parameter)),
                        ": its value is pending along an axis of data parallelism. Redistribute it first.");
      placements[axis] = Replicate();
    }
    auto* whole = Layout::get(mesh, placements);
    auto rest = cut(grid_within(*whole, *own), dim, parameter.sizes());
    rest.whole = whole;
    rest.data_of_whole = own->all();
    return rest;
  }
  auto grid = grid_of_outer(axes);
  grid.mesh = joined_mesh(name, axes.mesh, mesh);
  grid.placements.insert(grid.placements.end(), placements.begin(), placements.end());
  auto rest = cut(grid, dim, parameter.sizes());
  rest.whole = &layout_of(parameter);
  return rest;
}

at::Tensor laid_out_as_shards(const std::string& name, const DeviceMesh& mesh, const at::Tensor& parameter,
                              std::optional<int64_t> dim) {
  WorldScope world(mesh.world());
  auto axes = ShardingAxes::of(mesh);
  axes.on_full_mesh = true;
  auto* layout = layouts_of_param(name, axes, parameter, dim).shards;
  if (layout->mesh() != mesh_of(parameter)) return parameter;
  Shards locals;
  for (auto& slot : layout->mesh().slots()) {
    auto shape = local_shape(*layout, parameter.sizes(), slot.coordinate);
    locals.push_back(at::empty(shape, at::TensorOptions(at::kMeta).dtype(parameter.dtype())));
  }
  auto strides = c10::contiguous_strides(parameter.sizes());
  auto laid_out = wrap(std::move(locals), layout, parameter.sizes(), strides, parameter.dtype());
  if (body_of(parameter).note) attach_note(laid_out, body_of(parameter).note);
  return laid_out;
}

}  // namespace intarsia
