// Slices, joins and rearrangements along a dim that is cut: the result stays cut, and only what must moves.

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/copied_view.h"
#include "intarsia/ops/recut.h"
#include "intarsia/redistribute/run.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool is_cut(const at::Tensor& tensor, int64_t dim) {
  return is_dtensor(tensor) && !axes_cutting(layout_of(tensor), dim).empty();
}

// Whether zeros may join what is pending: every rank adds its own.
bool zeros_pass(const Layout& layout) {
  for (auto& p : layout.placements()) {
    auto* partial = std::get_if<Partial>(&p);
    if (partial && partial->op != ReduceOp::sum && partial->op != ReduceOp::avg) return false;
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
};

at::Tensor slice_of(const at::Tensor& self, int64_t dim, const Range& range) {
  std::vector<Source> sources;
  for (int64_t j = 0; j < range.count; ++j) sources.push_back({0, range.start + j * range.step});
  return recut({self}, dim, sources);
}

bool slice(Stack& stack) {
  auto self = stack[0].toTensor();
  if (self.dim() == 0 || stack[4].toInt() <= 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[1].toInt(), self.dim());
  if (!is_cut(self, dim)) return false;
  Range range(stack[2], stack[3], stack[4].toInt(), self.size(dim));
  if (range.count == self.size(dim)) return false;  // all of it: stays where it is
  CauseScope cause("aten::slice.Tensor", true);
  auto strides = self.strides().vec();
  strides[dim] *= range.step;
  auto result = as_view(slice_of(self, dim, range), strides, "aten::slice", "Tensor", stack);
  stack = {result};
  return true;
}

// The owner sends its slice to the others.
bool select(Stack& stack) {
  auto self = stack[0].toTensor();
  if (self.dim() == 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[1].toInt(), self.dim());
  auto index = stack[2].toInt(), size = self.size(dim);
  if (!is_cut(self, dim) || index < -size || index >= size) return false;
  if (index < 0) index += size;
  CauseScope cause("aten::select.int", true);
  auto& layout = layout_of(self);
  auto& axis = Axis::of(layout.mesh(), axes_cutting(layout, dim));
  int64_t owner = 0, local = 0;
  auto held = held_by_members(layout, dim, size);
  for (size_t member = 0; member < held.size(); ++member) {
    int64_t before = 0;
    for (auto& run : held[member]) {
      if (run.begin <= index && index < run.end) owner = member, local = before + index - run.begin;
      before += run.size();
    }
  }
  Shards results;
  auto& shards = meta_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto shape = shards[slot].sizes().vec();
    shape.erase(shape.begin() + dim);
    results.push_back(at::empty(shape, shards[slot].options()));
    if (axis.position(slot) == owner) results.back().copy_(shards[slot].select(dim, local));
  }
  if (!results.empty()) axis.broadcast(results, owner);
  auto sizes = self.sizes().vec(), strides = self.strides().vec();
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  auto result = wrap(std::move(results), without_cut(layout, dim, true), sizes, c10::contiguous_strides(sizes), self.dtype());
  result = as_view(result, strides, "aten::select", "int", stack);
  stack = {result};
  return true;
}

// split.Tensor gives one size, split_with_sizes a list. The unsafe forms are no views.
bool split(Stack& stack, bool views) {
  auto self = stack[0].toTensor();
  if (self.dim() == 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[2].toInt(), self.dim());
  if (!is_cut(self, dim)) return false;
  auto size = self.size(dim);
  std::vector<int64_t> lengths;
  if (stack[1].isInt()) {
    auto length = stack[1].toInt();
    if (length <= 0) return false;
    for (int64_t start = 0; start < size; start += length) lengths.push_back(std::min(length, size - start));
    if (lengths.empty()) lengths.push_back(0);
  } else {
    lengths = stack[1].toIntVector();
    int64_t total = 0;
    for (auto length : lengths) {
      if (length < 0) return false;
      total += length;
    }
    if (total != size) return false;
  }
  c10::List<at::Tensor> parts;
  int64_t start = 0;
  CauseScope cause("aten::split", true);
  for (auto length : lengths) {
    parts.push_back(views ? at::slice(self, dim, start, start + length)
                          : slice_of(self, dim, Range(start, start + length, 1, size)));
    start += length;
  }
  stack = {parts};
  return true;
}

bool slice_backward(Stack& stack) {
  auto grad = stack[0].toTensor();
  auto sizes = stack[1].toIntVector();
  auto dim = c10::maybe_wrap_dim(stack[2].toInt(), sizes.size());
  if (!is_cut(grad, dim) || !zeros_pass(layout_of(grad))) return false;
  Range range(stack[3], stack[4], stack[5].toInt(), sizes[dim]);
  std::vector<Source> sources(sizes[dim]);
  for (int64_t j = 0; j < range.count; ++j) sources[range.start + j * range.step] = {0, j};
  CauseScope cause("aten::slice_backward", true);
  stack = {recut({grad}, dim, sources)};
  return true;
}

// All tensors in the layout of the first that is cut along `dim`, in one dtype. Empty if the plain rule should speak.
std::vector<at::Tensor> lined_up(const std::vector<at::Tensor>& tensors, int64_t dim) {
  const Layout* layout = nullptr;
  for (auto& tensor : tensors) {
    if (!is_dtensor(tensor) || tensor.dim() != tensors[0].dim()) return {};
    if (mesh_of(tensor) != mesh_of(tensors[0])) return {};
    if (!layout && is_cut(tensor, dim)) layout = &layout_of(tensor);
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (d != dim && tensor.size(d) != tensors[0].size(d)) return {};
    }
  }
  if (!layout) return {};
  layout = layout->with(settled(layout->placements()));
  auto dtype = at::native::result_type(at::TensorList(tensors));
  std::vector<at::Tensor> result;
  for (auto& tensor : tensors) {
    auto value = tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
    result.push_back(brought_to(value, layout));
  }
  return result;
}

// cat takes a one-dim tensor without elements for nothing at all, whatever the dims of the others.
bool is_nothing(const at::Tensor& tensor) { return tensor.dim() == 1 && tensor.numel() == 0; }

bool cat(Stack& stack) {
  auto tensors = stack[0].toTensorVector();
  if (std::any_of(tensors.begin(), tensors.end(), is_nothing)) {
    std::vector<at::Tensor> some;
    std::remove_copy_if(tensors.begin(), tensors.end(), std::back_inserter(some), is_nothing);
    if (!some.empty() && is_dtensor(some[0])) {
      auto dtype = at::native::result_type(at::TensorList(tensors));
      stack = {at::cat(some, stack[1].toInt()).to(dtype)};
      return true;
    }
  }
  if (tensors.empty() || tensors[0].dim() == 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[1].toInt(), tensors[0].dim());
  CauseScope cause("aten::cat", true);
  auto parts = lined_up(tensors, dim);
  if (parts.empty()) return false;
  std::vector<Source> sources;
  for (size_t t = 0; t < parts.size(); ++t) {
    for (int64_t p = 0; p < parts[t].size(dim); ++p) sources.push_back({static_cast<int64_t>(t), p});
  }
  stack = {recut(parts, dim, sources)};
  return true;
}

// A constant over a pending reduction: each rank gets its share, see Note [A value as a pending reduction].
bool fill_pending(Stack& stack) {
  auto self = stack[0].toTensor();
  if (!is_dtensor(self) || !layout_of(self).has_partial() || self.is_meta()) return false;
  auto placements = placements_of(self);
  for (auto& placement : placements) {
    if (!is_partial(placement)) placement = Replicate();
  }
  auto& mesh = mesh_of(self);
  auto* pending = Layout::get(mesh, placements);
  auto value = at::scalar_tensor(stack[1].toScalar(), at::dtype(self.scalar_type()));
  auto& shards = meta_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    shards[slot].fill_(shard_of(value, *pending, mesh.slots()[slot].coordinate).item());
  }
  meta_of(self).written();
  stack = {self};
  return true;
}

bool slice_scatter(Stack& stack) {
  auto self = stack[0].toTensor(), src = stack[1].toTensor();
  if (self.dim() == 0 || src.dim() != self.dim() || stack[5].toInt() <= 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[2].toInt(), self.dim());
  Range range(stack[3], stack[4], stack[5].toInt(), self.size(dim));
  if (src.size(dim) != range.count || src.scalar_type() != self.scalar_type()) return false;
  CauseScope cause("aten::slice_scatter", true);
  auto parts = lined_up({self, src}, dim);
  if (parts.empty()) return false;
  std::vector<Source> sources;
  for (int64_t p = 0; p < self.size(dim); ++p) sources.push_back({0, p});
  for (int64_t j = 0; j < range.count; ++j) sources[range.start + j * range.step] = {1, j};
  stack = {recut(parts, dim, sources)};
  return true;
}

bool select_scatter(Stack& stack) {
  auto self = stack[0].toTensor(), src = stack[1].toTensor();
  if (self.dim() == 0 || src.dim() + 1 != self.dim()) return false;
  auto dim = c10::maybe_wrap_dim(stack[2].toInt(), self.dim());
  auto index = stack[3].toInt(), size = self.size(dim);
  if (!is_cut(self, dim) || index < -size || index >= size) return false;
  if (index < 0) index += size;
  stack = {at::slice_scatter(self, src.unsqueeze(dim), dim, index, index + 1)};
  return true;
}

bool flip(Stack& stack) {
  auto self = stack[0].toTensor();
  std::vector<int64_t> here;
  bool any = false;
  CauseScope cause("aten::flip", true);
  for (auto given : stack[1].toIntVector()) {
    auto dim = c10::maybe_wrap_dim(given, self.dim());
    if (self.dim() == 0 || !is_cut(self, dim)) {
      here.push_back(dim);
      continue;
    }
    std::vector<Source> sources;
    for (auto p = self.size(dim); p-- > 0;) sources.push_back({0, p});
    self = recut({self}, dim, sources);
    any = true;
  }
  if (!any) return false;
  stack = {here.empty() ? self : at::flip(self, here)};
  return true;
}

bool roll(Stack& stack) {
  auto self = stack[0].toTensor();
  auto shifts = stack[1].toIntVector(), dims = stack[2].toIntVector();
  if (dims.empty() || shifts.size() != dims.size() || self.numel() == 0) return false;
  bool any = false;
  CauseScope cause("aten::roll", true);
  std::vector<int64_t> here_shifts, here_dims;
  for (size_t i = 0; i < dims.size(); ++i) {
    auto dim = c10::maybe_wrap_dim(dims[i], self.dim());
    if (!is_cut(self, dim)) {
      here_dims.push_back(dim);
      here_shifts.push_back(shifts[i]);
      continue;
    }
    auto size = self.size(dim);
    std::vector<Source> sources;
    for (int64_t p = 0; p < size; ++p) sources.push_back({0, ((p - shifts[i]) % size + size) % size});
    self = recut({self}, dim, sources);
    any = true;
  }
  if (!any) return false;
  stack = {here_dims.empty() ? self : at::roll(self, here_shifts, here_dims)};
  return true;
}

bool repeat(Stack& stack) {
  auto self = stack[0].toTensor();
  auto repeats = stack[1].toIntVector();
  auto added = static_cast<int64_t>(repeats.size()) - self.dim();
  if (added < 0) return false;
  bool any = false;
  CauseScope cause("aten::repeat", true);
  for (int64_t d = 0; d < self.dim(); ++d) {
    auto& times = repeats[d + added];
    if (times < 0) return false;
    if (times == 1 || !is_cut(self, d)) continue;
    std::vector<Source> sources;
    for (int64_t p = 0; p < self.size(d) * times; ++p) sources.push_back({0, p % self.size(d)});
    self = recut({self}, d, sources);
    times = 1;
    any = true;
  }
  if (!any) return false;
  stack = {self.repeat(repeats)};
  return true;
}

// The values of an index, the same on every rank. Empty optional if it is out of range: the plain op will say so.
std::optional<std::vector<int64_t>> values_of_index(const at::Tensor& index, int64_t size, bool wraps) {
  auto whole = shards_in(index, Layout::replicated(mesh_of(index)));
  if (whole.empty()) return std::nullopt;
  auto flat = whole[0].to(at::kLong).contiguous();
  std::vector<int64_t> values(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  for (auto& value : values) {
    if (wraps && value < 0) value += size;
    if (value < 0 || value >= size) return std::nullopt;
  }
  return values;
}

bool take_rows(Stack& stack, const at::Tensor& self, int64_t dim, const at::Tensor& index, bool wraps, const char* op) {
  if (!is_cut(self, dim) || !is_dtensor(index) || index.dim() != 1 || mesh_of(index) != mesh_of(self)) return false;
  if (mesh_of(self).group_count() > 1 || mesh_of(self).slots().empty()) return false;
  CauseScope cause(op, true);
  auto values = values_of_index(index, self.size(dim), wraps);
  if (!values) return false;
  std::vector<Source> sources;
  for (auto value : *values) sources.push_back({0, value});
  stack = {recut({self}, dim, sources)};
  return true;
}

bool index_select(Stack& stack) {
  auto self = stack[0].toTensor();
  if (!is_dtensor(self) || self.dim() == 0) return false;
  auto dim = c10::maybe_wrap_dim(stack[1].toInt(), self.dim());
  return take_rows(stack, self, dim, stack[2].toTensor(), false, "aten::index_select");
}

// x[:, i]: one index vector is index_select with negative places allowed.
bool index(Stack& stack) {
  auto self = stack[0].toTensor();
  int64_t dim = -1;
  at::Tensor places;
  auto given = stack[1].toListRef();
  for (size_t k = 0; k < given.size(); ++k) {
    if (given[k].isNone() || !given[k].toTensor().defined()) continue;
    if (dim >= 0) return false;
    dim = k;
    places = given[k].toTensor();
  }
  if (dim < 0 || dim >= self.dim() || !at::isIntegralType(places.scalar_type(), false) || places.scalar_type() == at::kByte) {
    return false;
  }
  return take_rows(stack, self, dim, places, true, "aten::index.Tensor");
}

}  // namespace

void add_structure_ops(RuleTable& t) {
  t.decompose("aten::slice.Tensor", slice);
  t.decompose("aten::select.int", select);
  for (auto op : {"aten::split.Tensor", "aten::split_with_sizes"}) t.decompose(op, [](auto& s) { return split(s, true); });
  for (auto op : {"aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}) {
    t.decompose(op, [](auto& s) { return split(s, false); });
  }
  t.decompose("aten::slice_backward", slice_backward);
  t.decompose("aten::cat", cat);
  t.decompose("aten::fill_.Scalar", fill_pending);
  t.decompose("aten::slice_scatter", slice_scatter);
  t.decompose("aten::select_scatter", select_scatter);
  t.decompose("aten::flip", flip);
  t.decompose("aten::roll", roll);
  t.decompose("aten::repeat", repeat);
  t.decompose("aten::index_select", index_select);
  t.decompose("aten::index.Tensor", index);
}

}  // namespace intarsia
