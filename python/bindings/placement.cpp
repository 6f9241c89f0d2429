#include <unordered_map>

#include "bindings.h"
#include "intarsia/core/overloaded.h"

namespace intarsia::python {
namespace {

// The classes that PyTorch's Python placements derive from.
py::handle base_class(const char* name) {
  return py::object(py::module_::import("torch._C._distributed").attr(name)).release();
}

template <class... Args>
py::object make(const char* name, Args&&... args) {
  return py::module_::import("torch.distributed.tensor.placement_types").attr(name)(std::forward<Args>(args)...);
}

// Kinds that derive from Partial reduce in ways of their own, which their reduce_op does not tell.
Partial partial_from(py::handle object) {
  auto name = py::type::of(object).attr("__name__").cast<std::string>();
  TORCH_CHECK_NOT_IMPLEMENTED(name == "Partial", "[placements] ", py::repr(object).cast<std::string>(), " is a ", name,
                              ", which reduces in a way of its own. Redistribute to Replicate or Shard, or use Partial.");
  return Partial(object.attr("reduce_op").cast<std::string>());
}

}  // namespace

Placement placement_from(py::handle object) {
  static auto shard = base_class("Shard"), strided = base_class("StridedShard"), replicate = base_class("Replicate"),
              partial = base_class("Partial");
  if (py::isinstance(object, strided)) {
    return StridedShard(object.attr("dim").cast<int64_t>(), object.attr("split_factor").cast<int64_t>());
  }
  if (py::isinstance(object, shard)) return Shard(object.attr("dim").cast<int64_t>());
  if (py::isinstance(object, replicate)) return Replicate();
  if (py::isinstance(object, partial)) return partial_from(object);
  throw py::type_error("a placement must be Shard, Replicate or Partial, but got " +
                       py::repr(object).cast<std::string>() + ".");
}

py::object placement_to(const Placement& placement) {
  return std::visit(overloaded{
                        [](const Replicate&) { return make("Replicate"); },
                        [](const Shard& s) { return make("Shard", s.dim); },
                        [](const StridedShard& s) {
                          return make("_StridedShard", s.dim, py::arg("split_factor") = s.split);
                        },
                        [](const Partial& p) { return make("Partial", str(p.op)); },
                    },
                    placement);
}

py::tuple placements_of_layout(const Layout& layout) {
  static auto* known = new std::unordered_map<const Layout*, py::tuple>;  // layouts live as long as the process
  auto found = known->find(&layout);
  if (found != known->end()) return found->second;
  py::list list;
  for (auto& placement : layout.placements()) list.append(placement_to(placement));
  return (*known)[&layout] = py::tuple(list);
}

}  // namespace intarsia::python
