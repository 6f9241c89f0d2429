// The largest and the smallest elements, with their indices. Along a sharded dim, every rank searches its own part, and
// only the winners are sent.

#include <ATen/ATen.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/order/cut_line.h"
#include "intarsia/ops/order/dim_rules.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

struct Winners {
  at::Tensor values, indices;
};

// Each rank's best, with its index in the whole, and then the best of those. The first of equal elements wins, as in
// the plain op.
Winners winners(const CutLine& line, const at::Tensor& self, bool keep, bool largest) {
  auto dim = line.dim;
  Shards values, indices;
  auto best = [&](const at::Tensor& t) { return largest ? at::max(t, dim, true) : at::min(t, dim, true); };
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    if (line.extent(slot) == 0) {
      values.push_back(shards[slot]);
      indices.push_back(at::empty(shards[slot].sizes(), shards[slot].options().dtype(at::kLong)));
      continue;
    }
    auto [value, index] = best(shards[slot]);
    values.push_back(value);
    indices.push_back(index + line.begin(slot));
  }
  auto extents = at_most(line.extents, 1);
  values = gather_along(*line.axis, values, dim, extents);
  indices = gather_along(*line.axis, indices, dim, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    auto [value, which] = best(values[slot]);
    auto index = indices[slot].gather(dim, which);
    values[slot] = keep ? value : value.squeeze(dim);
    indices[slot] = keep ? index : index.squeeze(dim);
  }
  auto sizes = line.sizes;
  if (keep)
    sizes[dim] = 1;
  else
    sizes.erase(sizes.begin() + dim);
  auto* layout = without_cut(*line.layout, dim, !keep);
  return {wrap_contiguous(std::move(values), layout, sizes, self.scalar_type()),
          wrap_contiguous(std::move(indices), layout, sizes, at::kLong)};
}

Lowering extreme_along(const CutCall& c, bool largest) {
  auto line = cut_line(c, c.call.int_arg("dim", 0));
  if (!line) return {};
  return [line, keep = c.call.bool_arg("keepdim", false), largest](Stack& stack) {
    auto found = winners(*line, stack[0].toTensor(), keep, largest);
    stack = {found.values, found.indices};
  };
}

// Without a dim: each rank's best of all its elements, and then the best of those. Indices grow in the same order on a
// rank and in the whole, so the first of equal elements is the one with the lowest index.
struct PlaceAmongAll {
  const Layout* layout;
  std::vector<int64_t> sizes, result_sizes;
  std::vector<int64_t> extents;  // per rank: one if it holds anything
  bool largest;

  at::Tensor best(const at::Tensor& t) const { return largest ? at::argmax(t) : at::argmin(t); }
  int64_t place_in_whole(const Slot& slot, int64_t local, at::IntArrayRef local_sizes) const;
  void operator()(Stack& stack) const;
};

// The flat index in the whole of a flat index in a rank's part.
int64_t PlaceAmongAll::place_in_whole(const Slot& slot, int64_t local, at::IntArrayRef local_sizes) const {
  int64_t place = 0, step = 1;
  for (auto d = static_cast<int64_t>(sizes.size()); d-- > 0;) {
    auto own = local % local_sizes[d];
    local /= local_sizes[d];
    for (auto& run : intervals_of(*layout, d, sizes[d], slot.coordinate)) {
      if (own < run.size()) {
        place += (run.begin + own) * step;
        break;
      }
      own -= run.size();
    }
    step *= sizes[d];
  }
  return place;
}

void PlaceAmongAll::operator()(Stack& stack) const {
  auto& mesh = layout->mesh();
  Shards values, places;
  auto& shards = body_of(stack[0].toTensor()).shards();
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto line = shards[slot].reshape({-1});
    if (line.numel() == 0) {
      values.push_back(line);
      places.push_back(at::empty({0}, line.options().dtype(at::kLong)));
      continue;
    }
    auto at = best(line).item<int64_t>();
    values.push_back(line.narrow(0, at, 1).contiguous());
    auto place = place_in_whole(mesh.slots()[slot], at, shards[slot].sizes());
    places.push_back(at::full({1}, place, line.options().dtype(at::kLong)));
  }
  auto& axis = Axis::whole(mesh);
  values = gather_along(axis, values, 0, extents);
  places = gather_along(axis, places, 0, extents);
  for (size_t slot = 0; slot < values.size(); ++slot) {
    auto order = at::argsort(places[slot]);
    auto winner = best(values[slot].index_select(0, order));
    places[slot] = places[slot].index_select(0, order).index_select(0, winner.reshape({1})).reshape(result_sizes);
  }
  stack = {wrap_contiguous(std::move(places), Layout::replicated(mesh), result_sizes, at::kLong)};
}

Lowering place_among_all(const CutCall& c, bool largest) {
  auto& self = c.input(0);
  if (!c.is_distributed(0) || self.numel() == 0 || c.has_partial(0) || c.now[0]->is_replicated()) return {};
  auto& mesh = c.now[0]->mesh();
  std::vector<int64_t> extents;
  for (int64_t member = 0; member < mesh.size(); ++member) {
    auto shape = local_shape(*c.now[0], self.sizes, mesh.coordinate_at(member));
    extents.push_back(c10::multiply_integers(shape) > 0 ? 1 : 0);
  }
  std::vector<int64_t> result_sizes(c.call.bool_arg("keepdim", false) ? self.dim() : 0, 1);
  return PlaceAmongAll{c.now[0], sizes_of(self), result_sizes, extents, largest};
}

Lowering place_along(const CutCall& c, bool largest) {
  bool of_all = c.call.arg("dim").isNone(), keep = c.call.bool_arg("keepdim", false);
  if (of_all && c.input(0).dim() != 1) return place_among_all(c, largest);
  if (of_all && keep) return {};
  auto line = cut_line(c, c.call.int_arg("dim", 0));
  if (!line) return {};
  return [line, keep, largest](Stack& stack) { stack = {winners(*line, stack[0].toTensor(), keep, largest).indices}; };
}

}  // namespace

void add_extremes(RuleTable& t) {
  t.add({"aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim", "aten::aminmax"}, pick_rule());
  t.lower("aten::max.dim", [](const CutCall& c) { return extreme_along(c, true); });
  t.lower("aten::min.dim", [](const CutCall& c) { return extreme_along(c, false); });
  t.lower("aten::argmax", [](const CutCall& c) { return place_along(c, true); });
  t.lower("aten::argmin", [](const CutCall& c) { return place_along(c, false); });
}

}  // namespace intarsia
