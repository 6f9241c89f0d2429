#pragma once
// DeviceMesh: the ranks of a world laid out on an n-dimensional grid with named axes.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>

#include "intarsia/core/world.h"

namespace intarsia {

// A rank that this process hosts and that the mesh contains, with its place on the mesh.
struct Slot {
  int64_t rank;
  int64_t group;  // which of the mesh's groups; see Note [Groups of a mesh]
  std::vector<int64_t> coordinate;
};

// A cheap handle: equal meshes share one body, which lives until the process ends.
//
// Note [Groups of a mesh]
// Slicing a 2x4 mesh ("dp", "tp") by "tp" gives a 1-D mesh of 4 ranks; which 4 depends on who asks: rank 0 sees
// 0..3, rank 5 sees 4..7. A process may host both, so a mesh holds all of these groups side by side, as rows of
// equal shape. A tensor on such a mesh is one independent tensor per group. A mesh made directly has one group.
class DeviceMesh {
 public:
  DeviceMesh() = default;

  // Lays `ranks` (row-major) on a grid of `shape`. Names are optional: all or none.
  DeviceMesh(c10::DeviceType device, std::vector<int64_t> shape, std::vector<int64_t> ranks,
             std::vector<std::string> names = {});

  bool defined() const { return body_ != nullptr; }
  c10::DeviceType device_type() const;
  int64_t ndim() const;
  int64_t size() const;              // ranks in one group
  int64_t size(int64_t axis) const;  // ranks along one axis; here and below a negative axis counts from the end
  c10::ArrayRef<int64_t> shape() const;
  const std::vector<std::string>& names() const;  // empty if the axes have none
  std::string axis_name(int64_t axis) const;      // the name, else the number
  int64_t axis_of(const std::string& name) const;
  int64_t group_count() const;
  c10::ArrayRef<int64_t> ranks() const;               // all groups, row-major [group, shape...]
  c10::ArrayRef<int64_t> ranks(int64_t group) const;  // one group
  const World& world() const;

  // The hosted ranks that this mesh contains, ascending. Shards are stored in this order.
  // Empty if the process hosts none: ops on such a mesh are no-ops.
  const std::vector<Slot>& slots() const;
  std::optional<std::vector<int64_t>> coordinate_of(int64_t rank) const;
  std::vector<int64_t> coordinate_at(int64_t position) const;  // of the rank at a row-major position of a group

  // The ranks on the line through `slot` along `axes` (several axes act as one, row-major).
  std::vector<int64_t> line(const Slot& slot, c10::ArrayRef<int64_t> axes) const;

  // The mesh of some of the axes, in the given order: see Note [Groups of a mesh].
  DeviceMesh operator[](const std::string& name) const { return slice({name}); }
  DeviceMesh slice(const std::vector<std::string>& names) const;
  DeviceMesh slice_axes(std::vector<int64_t> axes) const;
  DeviceMesh flatten(const std::string& name = "") const;  // one axis; the default name joins the names by "_"

  std::string text() const;  // DeviceMesh(cpu, dp=2, tp=4)
  bool operator==(const DeviceMesh&) const = default;
  size_t hash() const { return std::hash<const void*>()(body_); }

  struct Body;

 private:
  explicit DeviceMesh(const Body* body) : body_(body) {}
  static DeviceMesh intern(Body body);
  const Body& body() const;
  int64_t resolve(int64_t axis) const;  // counted from the front; out of range is an error
  const Body* body_ = nullptr;
};

// mesh.text().
std::string str(const DeviceMesh& mesh);

// A mesh of `shape` over all ranks of the current world, in order.
DeviceMesh init_device_mesh(c10::DeviceType device, std::vector<int64_t> shape, std::vector<std::string> names = {});

// Makes `mesh` the default for functions whose mesh is left out, on this thread, while the scope lives.
class MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  DeviceMesh outer_;
};

// The mesh of the innermost MeshScope; an error that names `where` if there is none.
DeviceMesh current_mesh(const char* where);

}  // namespace intarsia

template <>
struct std::hash<intarsia::DeviceMesh> {
  size_t operator()(const intarsia::DeviceMesh& mesh) const { return mesh.hash(); }
};
