#pragma once
// Meshes over existing process groups, for example those of torch.distributed.

#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "intarsia/core/mesh.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace intarsia {

// A mesh of one axis whose ranks are those of `group`, in its order; its collectives run over the group. All members
// call it together. If the process has no world yet, the group becomes the world.
DeviceMesh mesh_from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::DeviceType device,
                           const std::string& name = "");
DeviceMesh mesh_from_group(const c10::intrusive_ptr<c10d::Backend>& group, c10::DeviceType device,
                           const std::string& name = "");

// A mesh of `ranks` on a grid of `shape`. groups[i] connects this rank's line along axis i.
DeviceMesh mesh_from_groups(const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>& groups, c10::DeviceType device,
                            std::vector<int64_t> shape, std::vector<int64_t> ranks,
                            std::vector<std::string> names = {});
DeviceMesh mesh_from_groups(const std::vector<c10::intrusive_ptr<c10d::Backend>>& groups, c10::DeviceType device,
                            std::vector<int64_t> shape, std::vector<int64_t> ranks,
                            std::vector<std::string> names = {});

}  // namespace intarsia
