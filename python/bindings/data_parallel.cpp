#include <map>
#include <memory>

#include "bindings.h"
#include "intarsia/data_parallel/first_use.h"
#include "intarsia/data_parallel/reducer.h"
#include "intarsia/data_parallel/shard_group.h"
#include "intarsia/per_rank/per_rank.h"

namespace intarsia::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

// A Python object that threads without Python's lock may hold and let go.
std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            py::gil_scoped_acquire lock;
            delete held;
          }};
}

// hook(values, index, is_last, parameters) returns None, or a function that is called when the bucket is needed.
CommHook comm_hook_of(py::object function) {
  return [hook = held(std::move(function))](GradientBucket& bucket) -> Wait {
    py::gil_scoped_acquire lock;
    std::vector<at::Tensor> values(bucket.values.begin(), bucket.values.end());
    py::object finish = (*hook)(values, bucket.index, bucket.is_last, bucket.parameters);
    if (finish.is_none()) return {};
    return [finish = held(std::move(finish))] {
      py::gil_scoped_acquire again;
      (*finish)();
    };
  };
}

void bind_reducers(py::module_& m) {
  py::class_<Reducer, std::shared_ptr<Reducer>>(m, "Reducer", "Averages the gradients of a module in buckets.")
      .def(py::init([](uintptr_t module, const std::string& name, const DeviceMesh& mesh, const Named& parameters, const Named& buffers,
                       double first_bucket_mb, double bucket_cap_mb, bool as_view, bool find_unused, bool static_graph,
                       bool broadcast_buffers, bool init_sync) {
             auto bytes = [](double mib) { return static_cast<int64_t>(std::min(mib, 1e6) * (1 << 20)); };
             ReducerOptions options{{bytes(first_bucket_mb), bytes(bucket_cap_mb)}, as_view, find_unused, static_graph, broadcast_buffers};
             return make_reducer(reinterpret_cast<const void*>(module), name, mesh, parameters, buffers, options, init_sync);
           }),
           Unlocked())
      .def("set_syncs", &Reducer::set_syncs)
      .def("set_comm_hook", [](Reducer& self, py::object hook) { self.set_comm_hook(comm_hook_of(std::move(hook))); })
      .def("bucket_names", &Reducer::bucket_names)
      .def("join", [](Reducer& self, const std::function<void()>& body, bool divide) { self.join(body, divide); }, Unlocked());
}

// Which dim of each parameter is cut; None: none.
ShardGroupOptions shard_options(const Named& parameters, const std::vector<std::optional<int64_t>>& dims,
                                std::optional<bool> reshard_after_forward, std::optional<int64_t> reshard_to,
                                std::optional<at::ScalarType> param_dtype, std::optional<at::ScalarType> reduce_dtype) {
  std::map<std::string, std::optional<int64_t>> dim_of;
  for (size_t i = 0; i < parameters.size(); ++i) dim_of[parameters[i].first] = dims.at(i);
  auto find = [dim_of](const std::string& name, const at::Tensor&) { return dim_of.at(name); };
  return {find, reshard_after_forward, param_dtype, reduce_dtype, false, reshard_to};
}

void bind_shard_groups(py::module_& m) {
  py::class_<ShardGroup, std::shared_ptr<ShardGroup>>(m, "ShardGroup", "Parameters that are gathered and reduced together.")
      .def(py::init([](uintptr_t module, const std::string& name, const DeviceMesh& mesh, const Named& parameters, const Named& buffers,
                       const std::vector<std::optional<int64_t>>& dims, std::optional<bool> reshard_after_forward,
                       std::optional<int64_t> reshard_to, std::optional<at::ScalarType> param_dtype, std::optional<at::ScalarType> reduce_dtype, bool init_sync) {
             auto options = shard_options(parameters, dims, reshard_after_forward, reshard_to, param_dtype, reduce_dtype);
             return make_shard_group(reinterpret_cast<const void*>(module), name, mesh, parameters, buffers, options, init_sync);
           }),
           Unlocked())
      .def_property_readonly("name", &ShardGroup::name)
      .def_property_readonly("bytes", &ShardGroup::bytes)
      .def_property_readonly("is_whole", &ShardGroup::is_whole)
      .def_property_readonly("reshards_after_forward", &ShardGroup::reshards_after_forward)
      .def("set_name", &ShardGroup::set_name)
      .def("set_root", &ShardGroup::set_root)
      .def("set_pinned", &ShardGroup::set_pinned)
      .def("set_syncs", &ShardGroup::set_syncs)
      .def("set_reshard_after_forward", &ShardGroup::set_reshard_after_forward)
      .def("set_reshard_after_backward", &ShardGroup::set_reshard_after_backward)
      .def("set_divide_factor", &ShardGroup::set_divide_factor)
      .def("set_unused_as_zeros", &ShardGroup::set_unused_as_zeros)
      .def("set_prefetched",
           [](ShardGroup& self, bool in_backward, const std::vector<std::shared_ptr<ShardGroup>>& groups) {
             self.set_prefetched(in_backward, {groups.begin(), groups.end()});
           })
      .def("begin_unshard", &ShardGroup::begin_unshard, Unlocked())
      .def("unshard", &ShardGroup::unshard, Unlocked())
      .def("need_whole", &ShardGroup::need_whole, Unlocked())
      .def("reshard", &ShardGroup::need_shards, Unlocked())
      .def("reshard_after_forward", &ShardGroup::reshard_after_forward, Unlocked());
}

}  // namespace

void bind_data_parallel(py::module_& module) {
  bind_reducers(module);
  bind_shard_groups(module);
  module.def("is_watched", [](const at::Tensor& leaf) { return watcher_of(leaf) != nullptr; },
             "Whether the parameter is replicated or sharded already.");
}

}  // namespace intarsia::python
