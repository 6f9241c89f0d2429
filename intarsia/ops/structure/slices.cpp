// Slices of a dim, their gradients, and ops that put a slice into a whole. Along a sharded dim the result stays
// sharded, and only elements that must move are sent.

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/ops/along/copied_view.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/along/replicated.h"
#include "intarsia/ops/structure/lined_up.h"
#include "intarsia/ops/structure/parts.h"
#include "intarsia/rules/table.h"
#include "intarsia/rules/view_builders.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// select, slice, split, unbind: every dim but the one they work on may be sharded.
std::vector<int64_t> other_dims(const OpCall& call, bool removed) {
  auto ndim = call.inputs[0].dim();
  auto gone = ndim ? call.dim_arg("dim", ndim) : 0;
  std::vector<int64_t> map;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != gone)
      map.push_back(d);
    else if (!removed)
      map.push_back(-1);
  }
  return map;
}

std::vector<int64_t> sliced_dims(const OpCall& call) {
  auto map = other_dims(call, false);
  auto dim = call.dim_arg("dim", call.inputs[0].dim());
  if (call.inputs[0].sizes == call.outputs[0].sizes) map[dim] = dim;  // all of the dim
  return map;
}

// narrow_copy(dim, start, length): all but one dim.
Rule narrow_rule() {
  Rule rule = rows("rearrange", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != call.dim_arg("dim", ndim)) rows.push_back({{S(d)}, {S(d)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// Whether zeros may be added to what is pending: every rank adds its own.
bool zeros_pass(const Layout& layout) {
  for (auto& p : layout.placements()) {
    if (is_partial(p) && !adds_up(p)) return false;
  }
  return true;
}

// start, end and step as slice reads them.
struct Range {
  int64_t start, step, count;
  Range(const c10::IValue& from, const c10::IValue& to, int64_t by, int64_t size) : step(by) {
    auto place = [size](const c10::IValue& value, int64_t otherwise) {
      auto p = value.isNone() ? otherwise : value.toInt();
      return std::clamp<int64_t>(p < 0 ? p + size : p, 0, size);
    };
    start = place(from, 0);
    count = std::max<int64_t>(0, (place(to, size) - start + step - 1) / step);
  }
  Range(const OpCall& call, int64_t size) : Range(call.arg("start"), call.arg("end"), call.int_arg("step", 1), size) {}
};

RecutPlan plan_slice(const Layout& layout, const TensorForm& self, int64_t dim, const Range& range) {
  std::vector<Source> sources;
  for (int64_t j = 0; j < range.count; ++j) sources.push_back({0, range.start + j * range.step});
  return plan_recut(layout, self.sizes, dim, sources);
}

Lowering slice_along(const CutCall& c) {
  auto& self = c.input(0);
  if (self.dim() == 0 || c.call.int_arg("step", 1) <= 0) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  if (!c.cuts(0, dim)) return {};
  Range range(c.call, self.sizes[dim]);
  if (range.count == self.sizes[dim]) return {};  // all of it: nothing moves
  std::vector<int64_t> strides(self.strides.begin(), self.strides.end());
  strides[dim] *= range.step;
  auto plan = plan_slice(*c.now[0], self, dim, range);
  return [=](Stack& stack) {
    stack = {as_view(recut(plan, {stack[0].toTensor()}), strides, "aten::slice", "Tensor", stack)};
  };
}

// Which rank holds a position of the sharded dim, and where.
struct Owner {
  int64_t member = 0, local = 0;
};

Owner owner_of(const Layout& layout, int64_t dim, int64_t size, int64_t index) {
  Owner owner;
  auto held = held_by_members(layout, dim, size);
  for (size_t member = 0; member < held.size(); ++member) {
    int64_t before = 0;
    for (auto& run : held[member]) {
      if (run.begin <= index && index < run.end) owner = {static_cast<int64_t>(member), before + index - run.begin};
      before += run.size();
    }
  }
  return owner;
}

// The owner sends its slice to the others.
Shards sent_by(const Owner& owner, const at::Tensor& self, int64_t dim) {
  auto& layout = layout_of(self);
  auto& axis = Axis::of(layout.mesh(), axes_cutting(layout, dim));
  Shards results;
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto shape = shards[slot].sizes().vec();
    shape.erase(shape.begin() + dim);
    results.push_back(at::empty(shape, shards[slot].options()));
    if (axis.position(slot) == owner.member) results.back().copy_(shards[slot].select(dim, owner.local));
  }
  if (!results.empty()) axis.broadcast(results, owner.member);
  return results;
}

Lowering select_along(const CutCall& c) {
  auto& self = c.input(0);
  if (self.dim() == 0) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  auto index = c.call.int_arg("index", 0), size = self.sizes[dim];
  if (!c.cuts(0, dim) || index < -size || index >= size) return {};
  auto owner = owner_of(*c.now[0], dim, size, index < 0 ? index + size : index);
  auto* layout = without_cut(*c.now[0], dim, true);
  auto sizes = sizes_of(self);
  std::vector<int64_t> strides(self.strides.begin(), self.strides.end());
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return [=](Stack& stack) {
    auto given = stack[0].toTensor();
    auto copy = wrap(sent_by(owner, given, dim), layout, sizes, c10::contiguous_strides(sizes), given.dtype());
    stack = {as_view(copy, strides, "aten::select", "int", stack)};
  };
}

// split.Tensor has one size, split_with_sizes a list. None if the plain op rejects them.
std::optional<std::vector<int64_t>> lengths_in(const c10::IValue& given, int64_t size) {
  std::vector<int64_t> lengths;
  if (given.isInt()) {
    auto length = given.toInt();
    if (length <= 0) return std::nullopt;
    for (int64_t start = 0; start < size; start += length) lengths.push_back(std::min(length, size - start));
    if (lengths.empty()) lengths.push_back(0);
    return lengths;
  }
  lengths = given.toIntVector();
  int64_t total = 0;
  for (auto length : lengths) {
    if (length < 0) return std::nullopt;
    total += length;
  }
  return total == size ? std::optional(lengths) : std::nullopt;
}

Lowering split_along(const CutCall& c) {
  auto& self = c.input(0);
  if (self.dim() == 0) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  if (!c.cuts(0, dim)) return {};
  auto lengths = lengths_in(c.call.args[1], self.sizes[dim]);
  if (!lengths) return {};
  return [dim, lengths = *lengths](Stack& stack) {
    c10::List<at::Tensor> parts;
    int64_t start = 0;
    for (auto length : lengths) {
      parts.push_back(at::slice(stack[0].toTensor(), dim, start, start + length));
      start += length;
    }
    stack = {parts};
  };
}

// The unsafe variants are not views, though they have the strides of views.
Lowering unsafe_split_along(const CutCall& c) {
  auto& self = c.input(0);
  if (self.dim() == 0) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  if (!c.cuts(0, dim)) return {};
  auto size = self.sizes[dim];
  auto lengths = lengths_in(c.call.args[1], size);
  if (!lengths) return {};
  std::vector<RecutPlan> plans;
  std::vector<int64_t> strides(self.strides.begin(), self.strides.end());
  int64_t start = 0;
  for (auto length : *lengths) {
    plans.push_back(plan_slice(*c.now[0], self, dim, Range(start, start + length, 1, size)));
    start += length;
  }
  return [=](Stack& stack) {
    c10::List<at::Tensor> parts;
    for (auto& plan : plans) parts.push_back(in_order(recut(plan, {stack[0].toTensor()}), strides));
    stack = {parts};
  };
}

Lowering slice_gradient_along(const CutCall& c) {
  auto sizes = c.call.arg("input_sizes").toIntVector();
  auto dim = c.call.dim_arg("dim", sizes.size());
  if (!c.cuts(0, dim) || !zeros_pass(*c.now[0])) return {};
  Range range(c.call, sizes[dim]);
  std::vector<Source> sources(sizes[dim]);
  for (int64_t j = 0; j < range.count; ++j) sources[range.start + j * range.step] = {0, j};
  auto plan = plan_recut(*c.now[0], c.input(0).sizes, dim, sources);
  return [=](Stack& stack) { stack = {recut(plan, {stack[0].toTensor()})}; };
}

Lowering slice_scatter_along(const CutCall& c) {
  auto &self = c.input(0), &src = c.input(1);
  if (self.dim() == 0 || src.dim() != self.dim() || c.call.int_arg("step", 1) <= 0) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  Range range(c.call, self.sizes[dim]);
  if (src.sizes[dim] != range.count || src.dtype != self.dtype) return {};
  auto* layout = joining_layout(c, dim);
  if (!layout) return {};
  std::vector<Source> sources;
  for (int64_t p = 0; p < self.sizes[dim]; ++p) sources.push_back({0, p});
  for (int64_t j = 0; j < range.count; ++j) sources[range.start + j * range.step] = {1, j};
  auto plan = plan_recut(*layout, self.sizes, dim, {self.sizes[dim], src.sizes[dim]}, sources);
  return [=, strides = at::infer_dense_strides(self.sizes, self.strides)](Stack& stack) {
    stack = {in_order(recut(plan, lined_up({stack[0].toTensor(), stack[1].toTensor()}, layout)), strides)};
  };
}

Lowering select_scatter_along(const CutCall& c) {
  auto &self = c.input(0), &src = c.input(1);
  if (self.dim() == 0 || src.dim() + 1 != self.dim()) return {};
  auto dim = c.call.dim_arg("dim", self.dim());
  auto index = c.call.int_arg("index", 0), size = self.sizes[dim];
  if (!c.cuts(0, dim) || index < -size || index >= size) return {};
  if (index < 0) index += size;
  return [=](Stack& stack) {
    stack = {at::slice_scatter(stack[0].toTensor(), stack[1].toTensor().unsqueeze(dim), dim, index, index + 1)};
  };
}

// A tensor may give the split positions; its numbers are read first.
std::vector<at::Tensor> split_at_places(const at::Tensor& self, const at::Tensor& places, int64_t dim) {
  auto numbers = numbers_in(places);
  TORCH_CHECK(places.dim() <= 1, "tensor_split expected tensor_indices_or_sections to be a zero-dimensional or ",
              "one-dimensional tensor, but got a tensor with ", places.dim(), " dims");
  return places.dim() == 0 ? at::tensor_split(self, numbers[0], dim)
                           : at::tensor_split(self, at::IntArrayRef(numbers), dim);
}

}  // namespace

void add_slices(RuleTable& t) {
  auto removes = [](const OpCall& call) { return other_dims(call, true); };
  auto keeps = [](const OpCall& call) { return other_dims(call, false); };
  t.add({"aten::select.int", "aten::unbind.int"}, view(removes));
  t.add("aten::slice.Tensor", view(sliced_dims));
  t.add({"aten::split.Tensor", "aten::split_with_sizes", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"},
        view(keeps));
  t.add("aten::narrow_copy", narrow_rule());
  t.add("aten::select_backward", part_gradient({"dim"}, true));
  t.add("aten::slice_backward", part_gradient({"dim"}, false));
  t.add("aten::select_scatter", put_into({"dim"}, true).like_input(0));
  t.add("aten::slice_scatter", put_into({"dim"}, false).like_input(0));

  t.lower("aten::slice.Tensor", slice_along);
  t.lower("aten::select.int", select_along);
  for (auto* op : {"aten::split.Tensor", "aten::split_with_sizes"}) t.lower(op, split_along);
  for (auto* op : {"aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}) t.lower(op, unsafe_split_along);
  t.lower("aten::slice_backward", slice_gradient_along);
  t.lower("aten::slice_scatter", slice_scatter_along);
  t.lower("aten::select_scatter", select_scatter_along);
  t.composite("aten::tensor_split.tensor_indices_or_sections", split_at_places);
}

}  // namespace intarsia
