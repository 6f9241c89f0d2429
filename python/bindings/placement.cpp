#include <cmath>
#include <unordered_map>

#include "bindings.h"
#include "intarsia/core/more_reductions.h"
#include "intarsia/core/overloaded.h"

namespace intarsia::python {
namespace {

// The classes that PyTorch's Python placements derive from.
py::handle base_class(const char* name) {
  return py::object(py::module_::import("torch._C._distributed").attr(name)).release();
}

py::object class_named(const char* name) {
  return py::module_::import("torch.distributed.tensor.placement_types").attr(name);
}

template <class... Args>
py::object make(const char* name, Args&&... args) {
  return class_named(name)(std::forward<Args>(args)...);
}

py::object norm_class() { return py::module_::import("torch.distributed.tensor._ops._math_ops").attr("_NormPartial"); }

// An infinite order is the largest or the smallest value.
Partial norm_from(double order) {
  if (std::isinf(order)) return Partial(order > 0 ? ReduceOp::max : ReduceOp::min);
  return Partial(norm_op(order));
}

py::object norm_to(double order) {
  bool whole = order == std::floor(order);
  return norm_class()(whole ? py::object(py::int_(static_cast<int64_t>(order))) : py::object(py::float_(order)));
}

Partial masked_from(py::handle object) {
  auto shape = object.attr("offset_shape");
  TORCH_CHECK_NOT_IMPLEMENTED(object.attr("reduce_op").cast<std::string>() == "sum", "[placements] ",
                              py::repr(object).cast<std::string>(), " reduces by no sum. Use Partial.");
  auto table = shape.is_none() ? std::vector<int64_t>() : shape.cast<std::vector<int64_t>>();
  return Partial(masked_sum({std::move(table), object.attr("offset_dim").cast<int64_t>()}));
}

py::object masked_to(const MaskedSum& sum) {
  auto table =
      sum.table.empty() ? py::object(py::none()) : py::module_::import("torch").attr("Size")(py::cast(sum.table));
  return make("_MaskPartial", py::arg("offset_shape") = table, py::arg("offset_dim") = sum.dim);
}

// Kinds that derive from Partial reduce in their own ways, which their reduce_op does not show. Masked lookups are sums
// here, in which what a rank does not hold is zero: code that gives local tensors has applied the mask (_kinds.py).
Partial partial_from(py::handle object) {
  static auto plain = class_named("Partial").release(), masked = class_named("_MaskPartial").release();
  auto kind = py::type::of(object);
  if (kind.is(plain)) return Partial(object.attr("reduce_op").cast<std::string>());
  if (kind.is(masked)) return masked_from(object);
  TORCH_CHECK_NOT_IMPLEMENTED(
      kind.is(norm_class()), "[placements] ", py::repr(object).cast<std::string>(), " is a ",
      kind.attr("__name__").cast<std::string>(),
      ", which reduces in a way of its own. Redistribute to Replicate or Shard, or use Partial.");
  return norm_from(object.attr("norm_type").cast<double>());
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
  return std::visit(
      overloaded{
          [](const Replicate&) { return make("Replicate"); },
          [](const Shard& s) { return make("Shard", s.dim); },
          [](const StridedShard& s) { return make("_StridedShard", s.dim, py::arg("split_factor") = s.split); },
          [](const Partial& p) {
            if (auto order = norm_order(p.op)) return norm_to(*order);
            if (auto* sum = masked_sum_of(p.op)) return masked_to(*sum);
            return make("Partial", str(p.op));
          },
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
