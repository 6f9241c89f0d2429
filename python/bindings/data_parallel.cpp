#include <memory>

#include "bindings.h"
#include "intarsia/core/foreign.h"
#include "intarsia/data_parallel/fully_shard/group_hooks.h"
#include "intarsia/data_parallel/fully_shard/joined_mesh.h"
#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"
#include "intarsia/data_parallel/replicate/reducer.h"
#include "intarsia/simulation/per_rank/per_rank.h"

namespace intarsia::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Named = std::vector<std::pair<std::string, at::Tensor>>;
using GivenNamed = std::vector<std::pair<std::string, GivenTensor>>;

// A Python object that threads without the GIL may hold and release.
std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            py::gil_scoped_acquire lock;
            delete held;
          }};
}

Named checked(const GivenNamed& given, const char* function) {
  Named named;
  for (auto& [name, tensor] : given) {
    check_no_wrapper(tensor, function, '"' + name + '"');
    named.emplace_back(name, tensor.value);
  }
  return named;
}

std::vector<at::Tensor> listed(const Shards& shards) { return {shards.begin(), shards.end()}; }

// hook(values, index, is_last, parameters) returns None, or a function that is called when the bucket is needed.
CommHook comm_hook_of(py::object function) {
  return [hook = held(std::move(function))](GradientBucket& bucket) -> Wait {
    py::gil_scoped_acquire lock;
    py::object finish = (*hook)(listed(bucket.values), bucket.index, bucket.is_last, bucket.parameters);
    if (finish.is_none()) return {};
    return [finish = held(std::move(finish))] {
      py::gil_scoped_acquire again;
      (*finish)();
    };
  };
}

// A function that lists names of parameters.
FindUnaveraged find_unaveraged_of(py::object function) {
  return [find = held(std::move(function))] {
    py::gil_scoped_acquire lock;
    return (*find)().cast<std::vector<std::string>>();
  };
}

// A function that lists (name, parameter); None: the module has gone.
WrappedModules::FindLate find_late_of(py::object function) {
  return [find = held(std::move(function))]() -> std::optional<Named> {
    py::gil_scoped_acquire lock;
    py::object found = (*find)();
    if (found.is_none()) return std::nullopt;
    Named named;
    for (auto& [name, tensor] : found.cast<GivenNamed>()) named.emplace_back(name, tensor.value);
    return named;
  };
}

// A function that changes the tensors given in place; None: none.
ReducedHook reduced_hook_of(py::object function) {
  if (function.is_none()) return {};
  return [hook = held(std::move(function))](const Shards& flat) {
    py::gil_scoped_acquire lock;
    (*hook)(listed(flat));
  };
}

// An object with allocate(elements, dtype), which gives one tensor per hosted rank, and run(result, given), which
// returns None or a function that is called when the result is needed.
std::optional<CustomCollective> custom_collective_of(py::object object) {
  if (object.is_none()) return {};
  auto shared = held(std::move(object));
  auto allocate = [shared](int64_t elements, at::ScalarType dtype) {
    py::gil_scoped_acquire lock;
    auto made = shared->attr("allocate")(elements, dtype).cast<std::vector<at::Tensor>>();
    return Shards(made.begin(), made.end());
  };
  auto run = [shared](const Shards& result, const Shards& given) -> Wait {
    py::gil_scoped_acquire lock;
    py::object finish = shared->attr("run")(listed(result), listed(given));
    if (finish.is_none()) return {};
    return [finish = held(std::move(finish))] {
      py::gil_scoped_acquire again;
      (*finish)();
    };
  };
  return CustomCollective{allocate, run};
}

void bind_reducers(py::module_& m) {
  py::class_<Reducer, std::shared_ptr<Reducer>>(m, "Reducer", "Averages the gradients of a module in buckets.")
      .def(py::init([](uintptr_t module, const std::string& name, const DeviceMesh& mesh, const GivenNamed& parameters,
                       const GivenNamed& buffers, double first_bucket_mb, double bucket_cap_mb, bool as_view,
                       bool find_unused, bool static_graph, bool broadcast_buffers, bool init_sync,
                       py::object find_unaveraged) {
             ReplicateOptions options;
             options.first_bucket_mb = first_bucket_mb, options.bucket_cap_mb = bucket_cap_mb;
             options.gradient_as_bucket_view = as_view, options.find_unused_parameters = find_unused;
             options.static_graph = static_graph, options.broadcast_buffers = broadcast_buffers,
             options.init_sync = init_sync;
             return make_reducer(reinterpret_cast<const void*>(module), name, mesh, checked(parameters, "replicate"),
                                 checked(buffers, "replicate"), options,
                                 find_unaveraged_of(std::move(find_unaveraged)));
           }),
           Unlocked())
      .def("set_syncs", &Reducer::set_syncs)
      .def("set_comm_hook", [](Reducer& self, py::object hook) { self.set_comm_hook(comm_hook_of(std::move(hook))); })
      .def("bucket_names", &Reducer::bucket_names)
      .def(
          "join", [](Reducer& self, const std::function<void()>& body, bool divide) { self.join(body, divide); },
          Unlocked());
}

void bind_param_groups(py::module_& m) {
  py::class_<ParamGroup, std::shared_ptr<ParamGroup>>(m, "ParamGroup",
                                                      "Parameters that are gathered and reduced together.")
      .def(py::init([](uintptr_t module, const std::string& name, const DeviceMesh& mesh, const GivenNamed& given,
                       const GivenNamed& buffers, const std::vector<std::optional<int64_t>>& dims,
                       std::optional<bool> reshard_after_forward, std::optional<int64_t> reshard_to,
                       std::optional<at::ScalarType> param_dtype, std::optional<at::ScalarType> reduce_dtype,
                       bool init_sync, bool replicated, bool on_full_mesh, bool broadcast_buffers) {
             FullyShardOptions options;
             options.reshard_after_forward = reshard_after_forward, options.reshard_to = reshard_to;
             options.mp_policy.param_dtype = param_dtype, options.mp_policy.reduce_dtype = reduce_dtype;
             options.init_sync = init_sync, options.broadcast_buffers = broadcast_buffers;
             auto axes = replicated ? ShardingAxes::replicated(mesh) : ShardingAxes::of(mesh);
             axes.on_full_mesh = on_full_mesh;
             auto named_buffers = checked(buffers, "fully_shard");
             auto group = make_param_group(reinterpret_cast<const void*>(module), name, axes,
                                           checked(given, "fully_shard"), dims, named_buffers, options);
             if (broadcast_buffers) group->share_buffers(buffer_list(named_buffers));
             return group;
           }),
           Unlocked())
      .def_property_readonly("name", &ParamGroup::name)
      .def_property_readonly("bytes", &ParamGroup::bytes)
      .def_property_readonly("is_whole", &ParamGroup::is_whole)
      .def_property_readonly("reshards_after_forward", &ParamGroup::reshards_after_forward)
      .def("set_name", &ParamGroup::set_name)
      .def("set_root", &ParamGroup::set_root)
      .def("set_pinned", &ParamGroup::set_pinned)
      .def("set_syncs", &ParamGroup::set_syncs)
      .def("set_syncs_copies", &ParamGroup::set_syncs_copies)
      .def("set_reduced_hook",
           [](ParamGroup& self, py::object hook) { self.set_reduced_hook(reduced_hook_of(std::move(hook))); })
      .def("set_find_late",
           [](ParamGroup& self, py::object find) {
             FullyShardState::of(self).modules().add(find_late_of(std::move(find)));
           })
      .def("set_custom_all_gather",
           [](ParamGroup& self, py::object custom) {
             self.set_custom_all_gather(custom_collective_of(std::move(custom)));
           })
      .def("set_custom_reduce_scatter",
           [](ParamGroup& self, py::object custom) {
             self.set_custom_reduce_scatter(custom_collective_of(std::move(custom)));
           })
      .def("set_reshard_after_forward", &ParamGroup::set_reshard_after_forward)
      .def("set_reshard_after_backward", &ParamGroup::set_reshard_after_backward)
      .def("set_divide_factor", &ParamGroup::set_divide_factor)
      .def("set_unused_as_zeros", &ParamGroup::set_unused_as_zeros)
      .def("set_prefetched",
           [](ParamGroup& self, bool in_backward, const std::vector<std::shared_ptr<ParamGroup>>& groups) {
             self.set_prefetched(in_backward, {groups.begin(), groups.end()});
           })
      .def(
          "begin_unshard", [](ParamGroup& self) { FullyShardState::of(self).begin_unshard(self); }, Unlocked())
      .def(
          "unshard", [](ParamGroup& self) { FullyShardState::of(self).unshard(self); }, Unlocked())
      .def(
          "need_whole", [](const std::shared_ptr<ParamGroup>& self) { FullyShardState::of(*self).need_whole(self); },
          Unlocked())
      .def("reshard", &ParamGroup::need_shards, Unlocked())
      .def("reshard_after_forward", &ParamGroup::reshard_after_forward, Unlocked());
}

}  // namespace

void bind_data_parallel(py::module_& module) {
  bind_reducers(module);
  bind_param_groups(module);
  module.def("data_mesh", &data_mesh, py::arg("full"), py::arg("replicate"), py::arg("shard"),
             "The mesh of data parallelism along named axes: copies, then shards; several names are one axis.");
  module.def(
      "laid_out_as_shards",
      [](const std::string& name, const DeviceMesh& mesh, const GivenTensor& parameter, std::optional<int64_t> dim) {
        return laid_out_as_shards(name, mesh, parameter, dim);
      },
      py::arg("name"), py::arg("mesh"), py::arg("parameter"), py::arg("dim"),
      "A distributed parameter on meta as it will lie once it has values.");
  module.def(
      "is_watched", [](const GivenTensor& leaf) { return watcher_of(leaf) != nullptr; },
      "Whether the parameter is replicated or sharded already.");
}

}  // namespace intarsia::python
