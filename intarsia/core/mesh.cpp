#include "intarsia/core/mesh.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

namespace intarsia {

struct DeviceMesh::Body {
  const World* world;
  c10::DeviceType device;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int64_t> ranks;  // [group, shape...]
  int64_t size = 1;            // derived from here on
  std::vector<Slot> slots;

  auto key() const { return std::tie(world, device, shape, names, ranks); }
  bool operator<(const Body& other) const { return key() < other.key(); }
};

namespace {

thread_local DeviceMesh scoped_mesh_;

int64_t product(c10::ArrayRef<int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> unravel(int64_t position, c10::ArrayRef<int64_t> shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    coordinate[i] = position % shape[i];
    position /= shape[i];
  }
  return coordinate;
}

int64_t position_at(c10::ArrayRef<int64_t> coordinate, c10::ArrayRef<int64_t> shape) {
  int64_t position = 0;
  for (size_t i = 0; i < shape.size(); ++i) position = position * shape[i] + coordinate[i];
  return position;
}

std::string join(c10::ArrayRef<std::string> words, const char* between) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i ? between : "") + words[i];
  return text;
}

void check_names(const std::vector<std::string>& names, size_t ndim) {
  TORCH_CHECK_VALUE(names.empty() || names.size() == ndim, "[DeviceMesh] ", names.size(), " names (", join(names, ", "),
                    ") given for a mesh of ", ndim, " axes. Name every axis or none.");
  std::set<std::string> distinct(names.begin(), names.end());
  TORCH_CHECK_VALUE(distinct.size() == names.size(), "[DeviceMesh] the axis names (", join(names, ", "),
                    ") repeat. Give each axis its own name.");
}

}  // namespace

DeviceMesh::DeviceMesh(c10::DeviceType device, std::vector<int64_t> shape, std::vector<int64_t> ranks,
                       std::vector<std::string> names) {
  auto& world = current_world("DeviceMesh");
  check_names(names, shape.size());
  for (auto extent : shape) {
    TORCH_CHECK_VALUE(extent > 0, "[DeviceMesh] the shape ", c10::ArrayRef<int64_t>(shape), " has an axis of size ",
                      extent, ". Every axis needs at least one rank.");
  }
  TORCH_CHECK_VALUE(product(shape) == static_cast<int64_t>(ranks.size()), "[DeviceMesh] the shape ",
                    c10::ArrayRef<int64_t>(shape), " needs ", product(shape), " ranks, but ", ranks.size(),
                    " were given. Make the two agree.");
  std::set<int64_t> distinct(ranks.begin(), ranks.end());
  TORCH_CHECK_VALUE(distinct.size() == ranks.size(), "[DeviceMesh] the ranks ", c10::ArrayRef<int64_t>(ranks),
                    " repeat. A rank has one place on a mesh.");
  TORCH_CHECK_VALUE(
      ranks.empty() || (*distinct.begin() >= 0 && *distinct.rbegin() < world.size()), "[DeviceMesh] the ranks ",
      c10::ArrayRef<int64_t>(ranks), " do not all exist: ",
      world_was_chosen()
          ? c10::str("the world is ", world.text(), ". Use ranks below ", world.size(), ".")
          : "neither init() nor simulate() has been called, so the world is one rank. Call one of them first.");
  *this = intern({&world, device, std::move(shape), std::move(names), std::move(ranks)});
}

DeviceMesh DeviceMesh::intern(Body body) {
  // Meshes are few and compared on every op, so equal ones share a body for the life of the process.
  static auto* mutex = new std::mutex;
  static auto* bodies = new std::set<Body>;
  body.size = product(body.shape);
  for (auto rank : body.world->hosted()) {
    auto found = std::find(body.ranks.begin(), body.ranks.end(), rank);
    if (found == body.ranks.end()) continue;
    int64_t position = found - body.ranks.begin();
    body.slots.push_back({rank, position / body.size, unravel(position % body.size, body.shape)});
  }
  std::lock_guard lock(*mutex);
  return DeviceMesh(&*bodies->insert(std::move(body)).first);
}

const DeviceMesh::Body& DeviceMesh::body() const {
  TORCH_CHECK_VALUE(body_, "[DeviceMesh] this mesh is empty. Make one with init_device_mesh.");
  return *body_;
}

c10::DeviceType DeviceMesh::device_type() const { return body().device; }
int64_t DeviceMesh::ndim() const { return body().shape.size(); }
int64_t DeviceMesh::size() const { return body().size; }
c10::ArrayRef<int64_t> DeviceMesh::shape() const { return body().shape; }
const std::vector<std::string>& DeviceMesh::names() const { return body().names; }
int64_t DeviceMesh::group_count() const { return body().ranks.size() / body().size; }
c10::ArrayRef<int64_t> DeviceMesh::ranks() const { return body().ranks; }
const World& DeviceMesh::world() const { return *body().world; }
const std::vector<Slot>& DeviceMesh::slots() const { return body().slots; }

int64_t DeviceMesh::resolve(int64_t axis) const {
  TORCH_CHECK_INDEX(-ndim() <= axis && axis < ndim(), "[DeviceMesh] axis ", axis, " is out of range: ", text(), " has ",
                    ndim(), " axes.");
  return axis < 0 ? axis + ndim() : axis;
}

int64_t DeviceMesh::size(int64_t axis) const { return body().shape[resolve(axis)]; }

std::string DeviceMesh::axis_name(int64_t axis) const {
  axis = resolve(axis);
  return names().empty() ? std::to_string(axis) : names()[axis];
}

int64_t DeviceMesh::axis_of(const std::string& name) const {
  auto found = std::find(names().begin(), names().end(), name);
  TORCH_CHECK(found != names().end(), "[DeviceMesh] there is no axis \"", name, "\" in ", text(),
              names().empty() ? ". Give the axes names when you make the mesh."
                              : ". Its axes are " + join(names(), ", ") + ".");
  return found - names().begin();
}

c10::ArrayRef<int64_t> DeviceMesh::ranks(int64_t group) const { return ranks().slice(group * size(), size()); }

std::optional<std::vector<int64_t>> DeviceMesh::coordinate_of(int64_t rank) const {
  auto found = std::find(ranks().begin(), ranks().end(), rank);
  if (found == ranks().end()) return std::nullopt;
  return unravel((found - ranks().begin()) % size(), shape());
}

std::vector<int64_t> DeviceMesh::coordinate_at(int64_t position) const { return unravel(position, shape()); }

std::vector<int64_t> DeviceMesh::line(const Slot& slot, c10::ArrayRef<int64_t> axes) const {
  std::vector<int64_t> extents;
  for (auto axis : axes) extents.push_back(size(axis));
  std::vector<int64_t> result, coordinate = slot.coordinate;
  for (int64_t i = 0; i < product(extents); ++i) {
    auto along = unravel(i, extents);
    for (size_t k = 0; k < axes.size(); ++k) coordinate[resolve(axes[k])] = along[k];
    result.push_back(ranks(slot.group)[position_at(coordinate, shape())]);
  }
  return result;
}

DeviceMesh DeviceMesh::slice(const std::vector<std::string>& names) const {
  std::vector<int64_t> axes;
  for (auto& name : names) axes.push_back(axis_of(name));
  return slice_axes(axes);
}

DeviceMesh DeviceMesh::slice_axes(std::vector<int64_t> axes) const {
  for (auto& axis : axes) axis = resolve(axis);
  std::set<int64_t> kept(axes.begin(), axes.end());
  TORCH_CHECK_VALUE(!axes.empty() && kept.size() == axes.size(),
                    "[DeviceMesh] slice needs one or more distinct axes of ", text(), ".");
  std::vector<int64_t> rest, rest_shape;
  Body sliced{body().world, body().device, {}, {}, {}};
  for (auto axis : axes) {
    sliced.shape.push_back(size(axis));
    if (!names().empty()) sliced.names.push_back(names()[axis]);
  }
  for (int64_t axis = 0; axis < ndim(); ++axis) {
    if (!kept.count(axis)) rest.push_back(axis), rest_shape.push_back(size(axis));
  }
  // The axes that are not in the slice number its groups.
  for (int64_t group = 0; group < group_count(); ++group) {
    for (int64_t i = 0; i < product(rest_shape); ++i) {
      Slot corner{0, group, std::vector<int64_t>(ndim(), 0)};
      auto fixed = unravel(i, rest_shape);
      for (size_t k = 0; k < rest.size(); ++k) corner.coordinate[rest[k]] = fixed[k];
      auto ranks = line(corner, axes);
      sliced.ranks.insert(sliced.ranks.end(), ranks.begin(), ranks.end());
    }
  }
  return intern(std::move(sliced));
}

DeviceMesh DeviceMesh::flatten(const std::string& name) const {
  Body flat{body().world, body().device, {size()}, {}, body().ranks};
  if (!name.empty() || !names().empty()) flat.names = {name.empty() ? join(names(), "_") : name};
  return intern(std::move(flat));
}

std::string DeviceMesh::text() const {
  if (!defined()) return "DeviceMesh()";
  std::string text = "DeviceMesh(" + c10::DeviceTypeName(device_type(), true);
  for (int64_t i = 0; i < ndim(); ++i) {
    text += ", " + (names().empty() ? "" : names()[i] + "=") + std::to_string(shape()[i]);
  }
  bool plain = group_count() == 1;
  for (size_t i = 0; i < ranks().size(); ++i) plain = plain && ranks()[i] == static_cast<int64_t>(i);
  if (plain) return text + ")";
  text += "; ranks";
  for (int64_t g = 0; g < group_count(); ++g) {
    text += " [";
    for (int64_t i = 0; i < size(); ++i) text += (i ? " " : "") + std::to_string(ranks(g)[i]);
    text += "]";
  }
  return text + ")";
}

std::string str(const DeviceMesh& mesh) { return mesh.text(); }

DeviceMesh init_device_mesh(c10::DeviceType device, std::vector<int64_t> shape, std::vector<std::string> names) {
  auto& world = current_world("init_device_mesh");
  auto size = product(shape);
  TORCH_CHECK_VALUE(size == world.size() || world_was_chosen(), "[init_device_mesh] a mesh of shape ",
                    c10::ArrayRef<int64_t>(shape), " has ", size,
                    " ranks, but neither init() nor simulate() has been called, so the "
                    "world is one rank. Call init() first and start the program by a launcher (intarsia run -n ",
                    size, "), or open simulate(", size, ").");
  TORCH_CHECK_VALUE(size == world.size(), "[init_device_mesh] a mesh of shape ", c10::ArrayRef<int64_t>(shape), " has ",
                    size, " ranks, but the world is ", world.text(),
                    ". Their sizes must be equal; for a part of the world, pass the ranks to DeviceMesh.");
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return DeviceMesh(device, std::move(shape), std::move(ranks), std::move(names));
}

MeshScope::MeshScope(const DeviceMesh& mesh) : outer_(scoped_mesh_) { scoped_mesh_ = mesh; }
MeshScope::~MeshScope() { scoped_mesh_ = outer_; }

DeviceMesh current_mesh(const char* where) {
  TORCH_CHECK_VALUE(scoped_mesh_.defined(), "[", where, "] no mesh was given and there is no MeshScope. ",
                    "Pass a mesh, or open a MeshScope around the call.");
  return scoped_mesh_;
}

}  // namespace intarsia
