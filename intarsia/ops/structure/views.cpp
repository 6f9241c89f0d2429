// Views and reshapes: output dims are input dims, in another order or size.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/structure/parts.h"
#include "intarsia/rules/table.h"
#include "intarsia/rules/view_builders.h"

namespace intarsia {
namespace {

using Map = std::vector<int64_t>;

Map identity(int64_t ndim) {
  Map map(ndim);
  for (int64_t d = 0; d < ndim; ++d) map[d] = d;
  return map;
}

Map permuted(const OpCall& call) { return call.dims_arg("dims", call.inputs[0].dim()); }

Map transposed(const OpCall& call) {
  auto ndim = call.inputs[0].dim();
  auto map = identity(ndim);
  if (ndim) std::swap(map[call.dim_arg("dim0", ndim)], map[call.dim_arg("dim1", ndim)]);
  return map;
}

Map reversed(const OpCall& call) {
  auto map = identity(call.inputs[0].dim());
  std::reverse(map.begin(), map.end());
  return map;
}

Map unsqueezed(const OpCall& call) {
  auto map = identity(call.inputs[0].dim());
  map.insert(map.begin() + call.dim_arg("dim", call.inputs[0].dim() + 1), -1);
  return map;
}

// The dims that squeeze removes. Without an argument those are all of extent 1; an empty list names none.
Map gone_by_squeeze(const OpCall& call) {
  auto& sizes = call.inputs[0].sizes;
  Map gone;
  if (call.arg_index("dim") >= 0 && call.arg("dim").isIntList() && call.arg("dim").toIntVector().empty()) return gone;
  for (auto d : call.dims_arg("dim", sizes.size())) {
    if (d < call.inputs[0].dim() && sizes[d] == 1) gone.push_back(d);
  }
  return gone;
}

Map squeezed(const OpCall& call) {
  auto gone = gone_by_squeeze(call);
  Map map;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (std::find(gone.begin(), gone.end(), d) == gone.end()) map.push_back(d);
  }
  return map;
}

// The global sizes decide which dims are removed: an extent of 2 may be 1 on a rank, and stays.
void squeeze_whole(LocalCall& local) {
  auto self = local.stack[0].toTensor();
  auto gone = gone_by_squeeze(local.call);
  local.stack = {gone.empty() ? self.alias() : self.squeeze(gone)};
}

Map expanded(const OpCall& call) {
  auto& in = call.inputs[0];
  auto& out = call.outputs[0];
  Map map(out.dim(), -1);
  for (int64_t d = 0; d < in.dim(); ++d) {
    auto to = d + out.dim() - in.dim();
    if (in.sizes[d] == out.sizes[to]) map[to] = d;
  }
  return map;
}

// unfold(dimension, size, step): windows of one dim, with the positions in a window as a new last dim.
Map unfolded(const OpCall& call) {
  Map map;
  auto ndim = call.inputs[0].dim();
  auto dim = call.dim_arg("dimension", ndim);
  for (int64_t d = 0; d < ndim; ++d) map.push_back(d == dim ? -1 : d);
  map.push_back(-1);
  return map;
}

Map last_pairs_kept(const OpCall& call) { return identity(std::min(call.inputs[0].dim(), call.outputs[0].dim())); }

Map all_kept(const OpCall& call) { return identity(call.inputs[0].dim()); }

// Conjugation is real-linear; so is reading a complex number as two reals.
Rule linear_view(std::function<Map(const OpCall&)> map) {
  auto any = view(map);
  Rule rule = rows("view", [any](const OpCall& call) {
    Rows rows;
    for (auto row : any.rows(call)) {
      if (is_partial(row.in[0]) && !adds_up(row.in[0])) continue;
      row.any_reduction = false;
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// A lazily conjugated shard does not store the parts that it shows; a copy does.
Rule view_as_real_rule() {
  Rule rule = linear_view(last_pairs_kept).with_local([](LocalCall& local) {
    local.stack = {at::view_as_real(local.stack[0].toTensor().resolve_conj())};
  });
  rule.local.only_if_strided = true;
  return rule;
}

// `plain_does`: the plain op also works on a contiguous shard.
Rule sized_view(bool plain_does) {
  Rule rule = reshape().with_size_args({"size"});
  rule.local.only_if_strided = plain_does;
  return rule;
}

// Whether as_strided returns the tensor as it is. Offsets are relative to the tensor's beginning.
bool changes_nothing(const OpCall& call) {
  auto& self = call.inputs[0];
  return call.arg("size").toIntVector() == sizes_of(self) &&
         at::IntArrayRef(self.strides) == call.arg("stride").toIntVector() && call.int_arg("storage_offset", 0) == 0;
}

// Strides refer to the whole tensor, so the whole must be laid out in memory as they say.
Rule as_strided_rule() {
  auto pending = [as_it_is = view(all_kept)](const OpCall& call) {
    if (changes_nothing(call)) return as_it_is.rows(call);
    Rows rows;
    add_for_any_reduction(rows, {{P_sum}, {P_sum}});
    return rows;
  };
  return rows("view", pending).with_local([](LocalCall& local) {
    auto self = local.stack[0].toTensor();
    auto& form = local.call.inputs[0];
    if (changes_nothing(local.call)) {
      local.stack = {at::alias(self)};
      return;
    }
    if (self.strides() != c10::IntArrayRef(form.strides) || self.storage_offset() != 0) {
      self = at::empty_strided(form.sizes, form.strides, self.options()).copy_(self);
    }
    auto offset = local.stack[3].isNone() ? std::optional<int64_t>() : local.stack[3].toInt();
    local.stack = {self.as_strided(local.stack[1].toIntVector(), local.stack[2].toIntVector(), offset)};
  });
}

std::vector<std::vector<int64_t>> unfolded_sizes(const OpCall& call) { return {call.arg("input_sizes").toIntVector()}; }

}  // namespace

void add_views(RuleTable& t) {
  t.add({"aten::view", "aten::_unsafe_view"}, sized_view(true));
  t.add("aten::_reshape_alias", sized_view(false));
  t.add("aten::permute", view(permuted));
  t.add("aten::transpose.int", view(transposed));
  t.add("aten::t", view(reversed));
  t.add("aten::unsqueeze", view(unsqueezed));
  t.add({"aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims"}, view(squeezed).with_local(squeeze_whole));
  t.add("aten::expand", view(expanded).with_size_args({"size"}));
  t.add({"aten::alias", "aten::detach", "aten::lift_fresh"}, view(all_kept));
  t.add({"aten::_conj", "aten::_neg_view"}, linear_view(all_kept));
  t.add("aten::view_as_complex", linear_view(last_pairs_kept));
  t.add("aten::view_as_real", view_as_real_rule());
  t.add("aten::as_strided", as_strided_rule());
  t.add("aten::unfold", view(unfolded));
  t.add("aten::unfold_backward",
        part_gradient({"dim"}, false, {ReduceOp::sum, ReduceOp::avg}).like_input(0).with_shapes(unfolded_sizes));
}

}  // namespace intarsia
