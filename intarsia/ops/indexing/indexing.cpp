// x[i, :, j], read and written.

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/indexing/held.h"
#include "intarsia/ops/indexing/take_along.h"
#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// The dims of the result of x[...]. Indices broadcast to one shape, whose dims replace the indexed ones, or come first
// if other dims are between them.
struct Places {
  std::vector<int64_t> indexed;  // dims of self that have an index
  std::vector<int64_t> out_dim;  // per dim of self: its dim in x[...], or -1 where it is indexed
  std::vector<int64_t> shape;    // of the broadcast indices
  int64_t first = 0;             // where that shape begins in x[...]
  bool whole_numbers = true;     // no masks among them
};

Places places_of(const OpCall& call) {
  Places places;
  auto& self = call.inputs[0];
  auto count = static_cast<int64_t>(call.arg("indices").toListRef().size());
  for (int64_t k = 0; k < count; ++k) {
    auto& form = call.inputs[1 + k];
    if (!form.defined) continue;
    places.indexed.push_back(k);
    places.whole_numbers = places.whole_numbers && form.dtype != at::kBool && form.dtype != at::kByte;
    places.shape = at::infer_size(places.shape, form.sizes);
  }
  if (places.indexed.empty() || !places.whole_numbers) return places;
  bool adjacent = places.indexed.back() - places.indexed.front() + 1 == static_cast<int64_t>(places.indexed.size());
  places.first = adjacent ? places.indexed.front() : 0;
  auto added = static_cast<int64_t>(places.shape.size());
  int64_t before = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    bool gone = std::find(places.indexed.begin(), places.indexed.end(), d) != places.indexed.end();
    places.out_dim.push_back(gone ? -1 : before >= places.first ? before + added : before);
    if (!gone) ++before;
  }
  return places;
}

Rule index_rule() {
  return rows("gather", [](const OpCall& call) {
    Rows rows;
    auto places = places_of(call);
    if (places.indexed.empty() || !places.whole_numbers) return rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (places.out_dim[d] < 0) continue;
      Row row{Placements(call.inputs.size(), R), {S(places.out_dim[d])}};
      row.in[0] = S(d);
      rows.push_back(std::move(row));
    }
    for (int64_t b = 0; b < static_cast<int64_t>(places.shape.size()); ++b) {
      Row row{Placements(call.inputs.size(), R), {S(places.first + b)}};
      for (auto k : places.indexed) {
        auto& form = call.inputs[1 + k];
        auto own = b - (static_cast<int64_t>(places.shape.size()) - form.dim());
        if (own >= 0 && form.sizes[own] == places.shape[b]) row.in[1 + k] = S(own);
      }
      rows.push_back(std::move(row));
    }
    Row pending{Placements(call.inputs.size(), R), {P_sum}};
    pending.in[0] = P_sum;
    add_for_any_reduction(rows, pending);
    return rows;
  });
}

// x[:, i] of a plain tensor.
at::Tensor plain_index(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  c10::List<std::optional<at::Tensor>> indices;
  for (int64_t d = 0; d < dim; ++d) indices.push_back(std::nullopt);
  indices.push_back(index);
  return at::index(self, indices);
}

// One index vector is index_select that allows negative indices, except for the order in memory: that of self.
Lowering index_along(const CutCall& c) {
  int64_t dim = -1;
  for (size_t i = 1; i < c.call.inputs.size(); ++i) {
    if (!c.input(i).defined) continue;
    if (dim >= 0) return {};
    dim = i - 1;
  }
  if (dim < 0 || dim >= c.input(0).dim() || !takes_along_cut(c, 1 + dim, dim)) return {};
  auto form = plain_index(meta_tensor(c.input(0)), dim, meta_tensor(c.input(1 + dim)));
  return [dim, strides = form.strides().vec()](Stack& stack) {
    auto plain = [dim](const at::Tensor& self, const at::Tensor& index) { plain_index(self, dim, index); };
    auto taken = take_along(stack[0].toTensor(), dim, stack[1].toListRef()[dim].toTensor(), true, plain);
    stack = {in_order(taken, strides)};
  };
}

// Index `k` of the indexed dims, flat and not negative.
at::Tensor flat_index(const at::Tensor& given, const Places& places, size_t k, int64_t size) {
  auto index = given.to(at::kLong).expand(places.shape).reshape({-1});
  TORCH_CHECK_INDEX(index.numel() == 0 || (index.min().item<int64_t>() >= -size && index.max().item<int64_t>() < size),
                    "index ", index.masked_select(index.ge(size).logical_or_(index.lt(-size)))[0].item<int64_t>(),
                    " is out of bounds for dimension ", k, " with size ",
                    size);  // as the plain op counts: indexed dims
  return index + index.lt(0) * size;
}

// The values for self[indices], with this rank's extents; the dims of the indices are flattened into one.
at::Tensor flat_values(const at::Tensor& values, const at::Tensor& self, const Places& places) {
  std::vector<int64_t> shape(places.shape), rest;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (places.out_dim[d] >= 0) rest.push_back(self.size(d));
  }
  shape.insert(shape.begin(), rest.begin(), rest.begin() + places.first);
  shape.insert(shape.end(), rest.begin() + places.first, rest.end());
  auto result = values.expand(shape);
  if (places.shape.empty()) return result.unsqueeze(places.first);
  return result.flatten(places.first, places.first + static_cast<int64_t>(places.shape.size()) - 1);
}

// index_put where an indexed dim is sharded: a rank writes only the elements all of whose positions it holds.
void index_put_held(LocalCall& local) {
  auto places = places_of(local.call);
  auto is_cut = [&](int64_t d) { return cuts_dim(*local.in[0], d); };
  if (!places.whole_numbers || std::none_of(places.indexed.begin(), places.indexed.end(), is_cut))
    return local.call_plain();
  auto self = local.stack[0].toTensor();
  auto given = local.stack[1].toListRef();
  at::Tensor inside;
  std::vector<at::Tensor> flat(given.size());
  for (size_t k = 0; k < places.indexed.size(); ++k) {
    auto d = places.indexed[k];
    auto index = flat_index(given[d].toTensor(), places, k, local.call.inputs[0].sizes[d]);
    if (is_cut(d)) {
      auto mine = held_places(local, d);
      auto here = index.ge(mine.begin).logical_and_(index.lt(mine.end));
      inside = inside.defined() ? inside.logical_and(here) : here;
      index = index - mine.begin;
    }
    flat[d] = index;
  }
  auto kept = inside.nonzero().squeeze(1);
  c10::List<std::optional<at::Tensor>> indices;
  for (auto& index : flat)
    indices.push_back(index.defined() ? std::optional(index.index_select(0, kept)) : std::nullopt);
  auto values = flat_values(local.stack[2].toTensor(), self, places).index_select(places.first, kept);
  bool accumulate = local.stack[3].toBool();
  local.stack = {at::index_put(self, indices, values, accumulate)};
}

// The shape of x[indices].
std::vector<int64_t> indexed_shape(const TensorForm& self, const Places& places) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (places.out_dim[d] >= 0) shape.push_back(self.sizes[d]);
  }
  shape.insert(shape.begin() + places.first, places.shape.begin(), places.shape.end());
  return shape;
}

void check_values(const OpCall& call) {
  auto places = places_of(call);
  if (places.indexed.empty() || !places.whole_numbers) return;
  auto &values = call.inputs.back(), &self = call.inputs[0];
  auto shape = indexed_shape(self, places);
  bool fits =
      at::is_expandable_to(values.sizes, shape) && (self.numel() > 0 || c10::multiply_integers(places.shape) == 0);
  if (!fits) ask_plain(call);
}

Rule index_put_rule() {
  return rows("index write",
              [](const OpCall& call) {
                Rows rows;
                auto places = places_of(call);
                if (places.indexed.empty() || !places.whole_numbers) return rows;
                auto& values = call.inputs.back();
                auto out_ndim = call.inputs[0].dim() - static_cast<int64_t>(places.indexed.size()) +
                                static_cast<int64_t>(places.shape.size());
                for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
                  Row row{Placements(call.inputs.size(), R), {S(d)}};
                  row.in[0] = S(d);
                  if (places.out_dim[d] >= 0) {
                    auto own = places.out_dim[d] - (out_ndim - values.dim());
                    if (own >= 0 && values.sizes[own] == call.inputs[0].sizes[d]) row.in.back() = S(own);
                  }
                  rows.push_back(std::move(row));
                }
                bool adds = call.bool_arg("accumulate", false);
                for (auto& pending : {P_sum, P_avg}) {
                  Row row{Placements(call.inputs.size(), R), {pending}};
                  row.in[0] = row.in.back() = pending;
                  if (adds) rows.push_back(row);
                  if (!adds && pending == P_sum) add_for_any_reduction(rows, row);
                }
                return rows;
              })
      .with_local(index_put_held)
      .checking(check_values);
}

// The index tensors of x[i, :, j].
std::vector<size_t> all_indices(const OpCall& call) {
  std::vector<size_t> inputs(call.arg("indices").toListRef().size());
  std::iota(inputs.begin(), inputs.end(), 1);
  return inputs;
}

}  // namespace

void add_indexing(RuleTable& t) {
  t.add("aten::index.Tensor", index_rule().refusing_where(all_indices));
  t.add("aten::_unsafe_index.Tensor", index_rule());
  t.lower("aten::index.Tensor", index_along);
  t.add({"aten::index_put", "aten::_index_put_impl"}, index_put_rule().refusing_where(all_indices));
  t.add("aten::_unsafe_index_put", index_put_rule());
  // x[[0, 2]] in Python makes a tensor of the list before any op is called.
  t.traits({"aten::index", "aten::index_put", "aten::index_put_"},
           [](Traits& traits) { traits.plain["indices"] = PlainArgument::places; });
  t.formula_makes_places({"IndexBackward", "IndexPutBackward"});
}

}  // namespace intarsia
