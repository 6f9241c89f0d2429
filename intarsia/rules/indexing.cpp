// Ops that read or write at places that an index tensor names. Along an indexed dim that is cut, every rank serves the
// places that it holds: what is read elsewhere counts as zero, so results add up; what is written elsewhere is left out.

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

int64_t dim_of(const OpCall& call) {
  auto ndim = call.inputs[0].dim();
  return ndim ? c10::maybe_wrap_dim(call.int_arg("dim", 0), ndim) : 0;
}

bool cuts(const Layout& layout, int64_t dim) {
  for (auto& p : layout.placements()) {
    if (cut_dim(p) == dim) return true;
  }
  return false;
}

// The places of `dim` that this rank holds. Rules with such a local part are not aligned, so it is one run.
Interval held(const LocalCall& local, int64_t dim) {
  auto runs = intervals_of(*local.in[0], dim, local.call.inputs[0].sizes[dim], local.slot.coordinate);
  return runs.empty() ? Interval{0, 0} : runs[0];
}

// An index that is out of range for the whole must read as the plain op's error, on every rank: let the plain op speak,
// on a tensor that is as long as the whole along `dim`.
void check_range(LocalCall& local, const at::Tensor& index, int64_t dim) {
  auto size = local.call.inputs[0].sizes[dim];
  if (index.numel() == 0 || (index.min().item<int64_t>() >= 0 && index.max().item<int64_t>() < size)) return;
  auto self = local.stack[0].toTensor();
  auto sizes = self.sizes().vec();
  sizes[dim] = size;
  auto stack = local.stack;
  stack[0] = at::zeros(sizes, self.options());
  std::swap(stack, local.stack);
  local.call_plain();
  TORCH_CHECK_INDEX(false, local.call.schema.name(), ": index out of range for dim ", dim, " of size ", size);
}

// gather(self, dim, index) where self is cut along dim: places held elsewhere give zero.
void gather_held(LocalCall& local) {
  auto dim = dim_of(local.call);
  if (!cuts(*local.in[0], dim)) return local.call_plain();
  auto self = local.stack[0].toTensor(), index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held(local, dim);
  if (mine.size() == 0) {
    local.stack = {at::zeros(index.sizes(), self.options())};
    return;
  }
  auto outside = index.lt(mine.begin).logical_or_(index.ge(mine.end));
  auto result = at::gather(self, dim, (index - mine.begin).masked_fill_(outside, 0)).masked_fill_(outside, 0);
  local.stack = {std::move(result)};
}

Rule gather() {
  return rows("gather", [](const OpCall& call) {
           Rows rows;
           auto &self = call.inputs[0], &index = call.inputs[1];
           auto dim = dim_of(call);
           if (self.dim() == 0 || index.dim() == 0) return rows;
           for (int64_t d = 0; d < self.dim(); ++d) {
             if (d != dim && self.sizes[d] == index.sizes[d]) rows.push_back({{S(d), S(d)}, {S(d)}});
           }
           rows.push_back({{R, S(dim)}, {S(dim)}});
           if (self.dtype != at::kBool) rows.push_back({{S(dim), R}, {P_sum}});
           for (auto op : kReduceOps) rows.push_back({{P(op), R}, {P(op)}});
           return rows;
         })
      .with_local(gather_held);
}

// scatter(self, dim, index, ...) where self is cut along dim: what belongs elsewhere goes to a place behind the end.
void scatter_held(LocalCall& local) {
  auto dim = dim_of(local.call);
  if (!cuts(*local.in[0], dim)) return local.call_plain();
  auto self = local.stack[0].toTensor(), index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held(local, dim);
  auto spare = self.sizes().vec();
  spare[dim] = 1;
  auto outside = index.lt(mine.begin).logical_or_(index.ge(mine.end));
  local.stack[0] = at::cat({self, at::zeros(spare, self.options())}, dim);
  local.stack[2] = (index - mine.begin).masked_fill_(outside, mine.size());
  local.call_plain();
  local.stack[0] = local.stack[0].toTensor().narrow(dim, 0, mine.size()).contiguous();
}

// `summed`: the op adds, so pending sums pass. src has the shape of index or more.
Rule scatter(bool summed) {
  return rows("scatter", [summed](const OpCall& call) {
           Rows rows;
           auto &self = call.inputs[0], &index = call.inputs[1];
           auto dim = dim_of(call);
           if (self.dim() == 0 || index.dim() == 0) return rows;
           for (int64_t d = 0; d < self.dim(); ++d) {
             bool lined_up = d != dim;
             for (auto& form : call.inputs) lined_up = lined_up && form.sizes[d] == self.sizes[d];
             if (lined_up) rows.push_back({Placements(call.inputs.size(), S(d)), {S(d)}});
           }
           Row held{Placements(call.inputs.size(), R), {S(dim)}};
           held.in[0] = S(dim);
           rows.push_back(std::move(held));
           if (summed) {
             rows.push_back({{P_sum, R, P_sum}, {P_sum}});
             rows.push_back({{P_avg, R, P_avg}, {P_avg}});
             if (call.inputs[2].sizes == index.sizes) rows.push_back({{P_sum, S(dim), S(dim)}, {P_sum}});
           }
           return rows;
         })
      .with_local(scatter_held);
}

// index_add, index_copy and the like take a vector of places along dim, and whole slices.
void index_write_held(LocalCall& local) {
  auto dim = dim_of(local.call);
  if (!cuts(*local.in[0], dim)) return local.call_plain();
  auto index = local.stack[2].toTensor();
  check_range(local, index, dim);
  auto mine = held(local, dim);
  auto kept = index.ge(mine.begin).logical_and_(index.lt(mine.end)).nonzero().squeeze(1);
  local.stack[2] = index.index_select(0, kept) - mine.begin;
  if (local.call.inputs.size() > 2 && local.call.inputs[2].dim() > 0) {
    local.stack[3] = local.stack[3].toTensor().index_select(dim, kept);
  }
  local.call_plain();
}

Rule index_write(bool summed) {
  return rows("index write", [summed](const OpCall& call) {
           Rows rows;
           auto &self = call.inputs[0], &index = call.inputs[1];
           auto dim = dim_of(call);
           bool slices = call.inputs.size() > 2 && call.inputs[2].dim() > 0;
           if (self.dim() == 0 || index.dim() != 1 || (slices && call.inputs[2].dim() != self.dim())) return rows;
           for (int64_t d = 0; d < self.dim(); ++d) {
             Row row{{S(d), R}, {S(d)}};
             if (call.inputs.size() > 2) row.in.push_back(slices && d != dim ? S(d) : R);
             rows.push_back(std::move(row));
           }
           if (summed) {
             rows.push_back({{P_sum, R, P_sum}, {P_sum}});
             rows.push_back({{P_avg, R, P_avg}, {P_avg}});
             rows.push_back({{P_sum, S(0), S(dim)}, {P_sum}});
           }
           return rows;
         })
      .with_local(index_write_held);
}

Rule index_select() {
  Rule rule = rows("gather", [](const OpCall& call) {
    Rows rows;
    auto dim = dim_of(call);
    if (call.inputs[0].dim() == 0 || call.inputs[1].dim() == 0) return rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (d != dim) rows.push_back({{S(d), R}, {S(d)}});
    }
    rows.push_back({{R, S(0)}, {S(dim)}});
    for (auto op : kReduceOps) rows.push_back({{P(op), R}, {P(op)}});
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// x[i, :, j]: how the dims of x and of the indices come out. Indices broadcast to one shape, whose dims stand where
// the indices stood, or in front if other dims lie between them.
struct Places {
  std::vector<int64_t> indexed;   // dims of self that have an index
  std::vector<int64_t> out_dim;   // per dim of self: its dim in x[...], or -1 where it is indexed
  std::vector<int64_t> shape;     // of the indices together
  int64_t first = 0;              // where that shape begins in x[...]
  bool whole_numbers = true;      // no masks among them
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

Rule index() {
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
    for (auto op : kReduceOps) {
      Row row{Placements(call.inputs.size(), R), {P(op)}};
      row.in[0] = P(op);
      rows.push_back(std::move(row));
    }
    return rows;
  });
}

// index_put where an indexed dim is cut: only the places that all lie here are written.
void index_put_held(LocalCall& local) {
  auto places = places_of(local.call);
  auto cut = std::find_if(places.indexed.begin(), places.indexed.end(),
                          [&](int64_t d) { return cuts(*local.in[0], d); });
  if (!places.whole_numbers || cut == places.indexed.end()) return local.call_plain();
  auto self = local.stack[0].toTensor();
  auto given = local.stack[1].toListRef();
  at::Tensor inside;
  std::vector<at::Tensor> flat(given.size());
  for (size_t k = 0; k < places.indexed.size(); ++k) {
    auto d = places.indexed[k];
    auto size = local.call.inputs[0].sizes[d];
    auto index = given[d].toTensor().to(at::kLong).expand(places.shape).reshape({-1});
    TORCH_CHECK_INDEX(index.numel() == 0 || (index.min().item<int64_t>() >= -size && index.max().item<int64_t>() < size),
                      "index ", index.masked_select(index.ge(size).logical_or_(index.lt(-size)))[0].item<int64_t>(),
                      " is out of bounds for dimension ", k, " with size ", size);  // as the plain op counts: indexed dims
    index = index + index.lt(0) * size;
    if (cuts(*local.in[0], d)) {
      auto mine = held(local, d);
      auto here = index.ge(mine.begin).logical_and_(index.lt(mine.end));
      inside = inside.defined() ? inside.logical_and(here) : here;
      index = index - mine.begin;
    }
    flat[d] = index;
  }
  auto kept = inside.nonzero().squeeze(1);
  c10::List<std::optional<at::Tensor>> indices;
  for (auto& index : flat) indices.push_back(index.defined() ? std::optional(index.index_select(0, kept)) : std::nullopt);
  std::vector<int64_t> shape(places.shape);  // of self[indices], with this rank's extents
  std::vector<int64_t> rest;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (places.out_dim[d] >= 0) rest.push_back(self.size(d));
  }
  shape.insert(shape.begin(), rest.begin(), rest.begin() + places.first);
  shape.insert(shape.end(), rest.begin() + places.first, rest.end());
  auto values = local.stack[2].toTensor().expand(shape);
  if (places.shape.empty()) values = values.unsqueeze(places.first);
  if (places.shape.size() > 1) {
    values = values.flatten(places.first, places.first + static_cast<int64_t>(places.shape.size()) - 1);
  }
  bool accumulate = local.stack[3].toBool();
  local.stack = {at::index_put(self, indices, values.index_select(places.first, kept), accumulate)};
}

Rule index_put() {
  return rows("index write", [](const OpCall& call) {
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
           for (auto op : kReduceOps) {
             bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
             if (call.bool_arg("accumulate", false) && !sums) continue;
             Row row{Placements(call.inputs.size(), R), {P(op)}};
             row.in[0] = row.in.back() = P(op);
             rows.push_back(std::move(row));
           }
           return rows;
         })
      .with_local(index_put_held);
}

}  // namespace

void add_indexing_rules(RuleTable& t) {
  t["aten::gather"] = gather();
  t["aten::scatter.src"] = t["aten::scatter.value"] = t["aten::scatter.reduce"] = t["aten::scatter.value_reduce"] =
      t["aten::scatter_reduce.two"] = scatter(false);
  t["aten::scatter_add"] = scatter(true);
  t["aten::index_add"] = index_write(true);
  t["aten::index_copy"] = t["aten::index_fill.int_Scalar"] = t["aten::index_fill.int_Tensor"] =
      t["aten::index_reduce"] = index_write(false);
  t["aten::index_select"] = index_select();
  t["aten::index.Tensor"] = t["aten::_unsafe_index.Tensor"] = index();
  t["aten::index_put"] = t["aten::_index_put_impl"] = t["aten::_unsafe_index_put"] = index_put();
}

}  // namespace intarsia
