// Scans and searches along a dim that is cut: every rank works on its own part, and only totals, winners or candidates
// travel.

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// A tensor that is cut along `dim` in runs that follow each other from rank to rank.
struct CutLine {
  at::Tensor self;
  int64_t dim;
  const Layout& layout;
  const Axis& axis;
  std::vector<int64_t> extents, begins;  // per member

  int64_t begin(size_t slot) const { return begins[axis.position(slot)]; }
  int64_t extent(size_t slot) const { return extents[axis.position(slot)]; }
};

// None if the plain rule should speak: another dim is meant, something is pending, or the parts are strided.
std::optional<CutLine> cut_line(const at::Tensor& self, int64_t given_dim) {
  if (self.dim() == 0 || !is_dtensor(self) || self.numel() == 0) return std::nullopt;
  auto dim = c10::maybe_wrap_dim(given_dim, self.dim());
  auto& layout = layout_of(self);
  auto axes = axes_cutting(layout, dim);
  if (axes.empty() || layout.has_partial()) return std::nullopt;
  CutLine line{self, dim, layout, Axis::of(layout.mesh(), axes), {}, {}};
  int64_t next = 0;
  for (auto& held : held_by_members(layout, dim, self.size(dim))) {
    int64_t extent = 0;
    for (auto& run : held) {
      if (run.size() > 0 && run.begin != next) return std::nullopt;
      next += run.size();
      extent += run.size();
    }
    line.begins.push_back(next - extent);
    line.extents.push_back(extent);
  }
  return line;
}

// How many places each member that holds any contributes.
std::vector<int64_t> at_most(const std::vector<int64_t>& extents, int64_t count) {
  std::vector<int64_t> result;
  for (auto extent : extents) result.push_back(std::min(extent, count));
  return result;
}

at::Tensor wrapped(Shards shards, const Layout* layout, at::IntArrayRef sizes, at::ScalarType dtype) {
  return wrap(std::move(shards), layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

// The last place of each rank's scan, from all ranks; then what lies before this rank, combined.
using Combine = at::Tensor (*)(const at::Tensor& before, const at::Tensor& own);
at::Tensor add_up(const at::Tensor& a, const at::Tensor& b) { return a + b; }
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) { return a * b; }
at::Tensor add_logs(const at::Tensor& a, const at::Tensor& b) { return at::logaddexp(a, b); }

template <class Scan>
bool scan(Stack& stack, const char* op, Scan local_scan, Combine combine) {
  auto line = cut_line(stack[0].toTensor(), stack[1].toInt());
  if (!line) return false;
  CauseScope cause(op, true);
  Shards scans, lasts;
  auto& shards = meta_of(line->self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    scans.push_back(local_scan(shards[slot]));
    auto extent = line->extent(slot);
    lasts.push_back(scans[slot].narrow(line->dim, std::max<int64_t>(extent - 1, 0), std::min<int64_t>(extent, 1)));
  }
  auto totals = gather_along(line->axis, lasts, line->dim, at_most(line->extents, 1));
  auto dtype = scans.empty() ? line->self.scalar_type() : scans[0].scalar_type();
  for (size_t slot = 0; slot < scans.size(); ++slot) {
    at::Tensor before;
    int64_t place = 0;
    for (int64_t member = 0; member < line->axis.position(slot); ++member) {
      if (line->extents[member] == 0) continue;
      auto total = totals[slot].narrow(line->dim, place++, 1);
      before = before.defined() ? combine(before, total) : total;
    }
    if (before.defined() && line->extent(slot) > 0) scans[slot] = combine(before, scans[slot]);
  }
  stack = {wrapped(std::move(scans), &line->layout, line->self.sizes(), dtype)};
  return true;
}

std::optional<c10::ScalarType> dtype_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalarType());
}

// cummax and cummin: a later place wins a tie, and a NaN stays.
bool running_extreme(Stack& stack, bool largest) {
  auto line = cut_line(stack[0].toTensor(), stack[1].toInt());
  if (!line) return false;
  CauseScope cause(largest ? "aten::cummax" : "aten::cummin", true);
  Shards values, indices, last_values, last_indices;
  auto& shards = meta_of(line->self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto [value, index] = largest ? at::cummax(shards[slot], line->dim) : at::cummin(shards[slot], line->dim);
    auto extent = line->extent(slot);
    values.push_back(value);
    indices.push_back(index + line->begin(slot));
    auto last = [&](const at::Tensor& t) {
      return t.narrow(line->dim, std::max<int64_t>(extent - 1, 0), std::min<int64_t>(extent, 1));
    };
    last_values.push_back(last(values[slot]));
    last_indices.push_back(last(indices[slot]));
  }
  auto extents = at_most(line->extents, 1);
  auto all_values = gather_along(line->axis, last_values, line->dim, extents);
  auto all_indices = gather_along(line->axis, last_indices, line->dim, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    int64_t earlier = 0;
    for (int64_t member = 0; member < line->axis.position(slot); ++member) earlier += extents[member];
    if (earlier == 0 || line->extent(slot) == 0) continue;
    // The same scan over the earlier ranks' results tells which of them counts.
    auto candidates = all_values[slot].narrow(line->dim, 0, earlier);
    auto [scanned, which] = largest ? at::cummax(candidates, line->dim) : at::cummin(candidates, line->dim);
    auto before = scanned.narrow(line->dim, earlier - 1, 1);
    auto before_index = all_indices[slot].narrow(line->dim, 0, earlier).gather(line->dim, which.narrow(line->dim, earlier - 1, 1));
    auto own = largest ? values[slot].ge(before) : values[slot].le(before);
    own = values[slot].isnan().logical_or(own.logical_and(before.isnan().logical_not()));
    values[slot] = at::where(own, values[slot], before);
    indices[slot] = at::where(own, indices[slot], before_index);
  }
  auto sizes = line->self.sizes();
  stack = {wrapped(std::move(values), &line->layout, sizes, line->self.scalar_type()),
           wrapped(std::move(indices), &line->layout, sizes, at::kLong)};
  return true;
}

struct Winners {
  at::Tensor values, indices;
};

// Each rank's best, with its place in the whole, and then the best of those. The first of equals wins, as in the plain op.
std::optional<Winners> winners(const at::Tensor& self, int64_t given_dim, bool keep, bool largest, const char* op) {
  auto line = cut_line(self, given_dim);
  if (!line) return std::nullopt;
  CauseScope cause(op, true);
  auto dim = line->dim;
  Shards values, indices;
  auto best = [&](const at::Tensor& t) { return largest ? at::max(t, dim, true) : at::min(t, dim, true); };
  auto& shards = meta_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    if (line->extent(slot) == 0) {
      values.push_back(shards[slot]);
      indices.push_back(at::empty(shards[slot].sizes(), shards[slot].options().dtype(at::kLong)));
      continue;
    }
    auto [value, index] = best(shards[slot]);
    values.push_back(value);
    indices.push_back(index + line->begin(slot));
  }
  auto extents = at_most(line->extents, 1);
  values = gather_along(line->axis, values, dim, extents);
  indices = gather_along(line->axis, indices, dim, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    auto [value, which] = best(values[slot]);
    auto index = indices[slot].gather(dim, which);
    values[slot] = keep ? value : value.squeeze(dim);
    indices[slot] = keep ? index : index.squeeze(dim);
  }
  auto sizes = self.sizes().vec();
  if (keep) sizes[dim] = 1;
  else sizes.erase(sizes.begin() + dim);
  auto* layout = without_cut(line->layout, dim, !keep);
  return Winners{wrapped(std::move(values), layout, sizes, self.scalar_type()),
                 wrapped(std::move(indices), layout, sizes, at::kLong)};
}

bool extreme_with_index(Stack& stack, bool largest) {
  auto found = winners(stack[0].toTensor(), stack[1].toInt(), stack[2].toBool(), largest,
                       largest ? "aten::max.dim" : "aten::min.dim");
  if (!found) return false;
  stack = {found->values, found->indices};
  return true;
}

// The place, in the whole read as a line, of each of a rank's places along every dim.
int64_t place_in_whole(const at::Tensor& self, const Slot& slot, int64_t local, at::IntArrayRef local_sizes) {
  int64_t place = 0, step = 1;
  for (auto d = self.dim(); d-- > 0;) {
    auto own = local % local_sizes[d];
    local /= local_sizes[d];
    for (auto& run : intervals_of(layout_of(self), d, self.size(d), slot.coordinate)) {
      if (own < run.size()) {
        place += (run.begin + own) * step;
        break;
      }
      own -= run.size();
    }
    step *= self.size(d);
  }
  return place;
}

// Without a dim: each rank's best of all its elements, and then the best of those. Places grow alike on a rank and in the
// whole, so the first of equals is the one with the lowest place.
bool place_among_all(Stack& stack, bool largest) {
  auto self = stack[0].toTensor();
  if (!is_dtensor(self) || self.numel() == 0 || layout_of(self).has_partial() || layout_of(self).is_replicated()) return false;
  CauseScope cause(largest ? "aten::argmax" : "aten::argmin", true);
  auto& mesh = mesh_of(self);
  auto& axis = Axis::whole(mesh);
  std::vector<int64_t> extents;
  for (int64_t member = 0; member < mesh.size(); ++member) {
    auto shape = local_shape(layout_of(self), self.sizes(), mesh.coordinate_at(member));
    extents.push_back(c10::multiply_integers(shape) > 0 ? 1 : 0);
  }
  Shards values, places;
  auto& shards = meta_of(self).shards();
  auto best = [&](const at::Tensor& t) { return largest ? at::argmax(t) : at::argmin(t); };
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto line = shards[slot].reshape({-1});
    if (line.numel() == 0) {
      values.push_back(line);
      places.push_back(at::empty({0}, line.options().dtype(at::kLong)));
      continue;
    }
    auto at = best(line).item<int64_t>();
    values.push_back(line.narrow(0, at, 1).contiguous());
    auto place = place_in_whole(self, mesh.slots()[slot], at, shards[slot].sizes());
    places.push_back(at::full({1}, place, line.options().dtype(at::kLong)));
  }
  values = gather_along(axis, values, 0, extents);
  places = gather_along(axis, places, 0, extents);
  std::vector<int64_t> sizes(stack[2].toBool() ? self.dim() : 0, 1);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    auto order = at::argsort(places[slot]);
    auto winner = best(values[slot].index_select(0, order));
    places[slot] = places[slot].index_select(0, order).index_select(0, winner.reshape({1})).reshape(sizes);
  }
  stack = {wrapped(std::move(places), Layout::replicated(mesh), sizes, at::kLong)};
  return true;
}

bool place_of_extreme(Stack& stack, bool largest) {
  if (stack[1].isNone() && stack[0].toTensor().dim() != 1) return place_among_all(stack, largest);
  auto dim = stack[1].isNone() ? 0 : stack[1].toInt();
  bool keep = stack[2].toBool() && !stack[1].isNone();
  if (stack[1].isNone() && stack[2].toBool()) return false;
  auto found = winners(stack[0].toTensor(), dim, keep, largest, largest ? "aten::argmax" : "aten::argmin");
  if (!found) return false;
  stack = {found->indices};
  return true;
}

// The k best of all are among the k best of each rank.
bool topk(Stack& stack) {
  auto self = stack[0].toTensor();
  auto k = stack[1].toInt();
  bool largest = stack[3].toBool(), sorted = stack[4].toBool();
  auto line = cut_line(self, stack[2].toInt());
  if (!line || k < 0 || k > self.size(line->dim)) return false;
  CauseScope cause("aten::topk", true);
  auto dim = line->dim;
  Shards values, indices;
  auto& shards = meta_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto [value, index] = at::topk(shards[slot], std::min(k, line->extent(slot)), dim, largest, true);
    values.push_back(value);
    indices.push_back(index + line->begin(slot));
  }
  auto extents = at_most(line->extents, k);
  values = gather_along(line->axis, values, dim, extents);
  indices = gather_along(line->axis, indices, dim, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    auto [value, which] = at::topk(values[slot], k, dim, largest, sorted);
    values[slot] = value;
    indices[slot] = indices[slot].gather(dim, which);
  }
  auto sizes = self.sizes().vec();
  sizes[dim] = k;
  auto* layout = without_cut(line->layout, dim, false);
  stack = {wrapped(std::move(values), layout, sizes, self.scalar_type()),
           wrapped(std::move(indices), layout, sizes, at::kLong)};
  return true;
}

}  // namespace

void add_order_ops(RuleTable& t) {
  t.decompose("aten::cumsum", [](Stack& stack) {
    auto local = [dim = stack[1].toInt(), dtype = dtype_of(stack[2])](auto& x) { return at::cumsum(x, dim, dtype); };
    return scan(stack, "aten::cumsum", local, add_up);
  });
  t.decompose("aten::cumprod", [](Stack& stack) {
    auto local = [dim = stack[1].toInt(), dtype = dtype_of(stack[2])](auto& x) { return at::cumprod(x, dim, dtype); };
    return scan(stack, "aten::cumprod", local, multiply);
  });
  t.decompose("aten::logcumsumexp", [](Stack& stack) {
    if (stack[0].toTensor().is_complex()) return false;
    auto local = [dim = stack[1].toInt()](auto& x) { return at::logcumsumexp(x, dim); };
    return scan(stack, "aten::logcumsumexp", local, add_logs);
  });
  t.decompose("aten::cummax", [](Stack& stack) { return running_extreme(stack, true); });
  t.decompose("aten::cummin", [](Stack& stack) { return running_extreme(stack, false); });
  t.decompose("aten::max.dim", [](Stack& stack) { return extreme_with_index(stack, true); });
  t.decompose("aten::min.dim", [](Stack& stack) { return extreme_with_index(stack, false); });
  t.decompose("aten::argmax", [](Stack& stack) { return place_of_extreme(stack, true); });
  t.decompose("aten::argmin", [](Stack& stack) { return place_of_extreme(stack, false); });
  t.decompose("aten::topk", topk);
}

}  // namespace intarsia
