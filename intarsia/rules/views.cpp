#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Map = std::vector<int64_t>;

Map identity(int64_t ndim) {
  Map map(ndim);
  for (int64_t d = 0; d < ndim; ++d) map[d] = d;
  return map;
}

int64_t dim_arg(const OpCall& call, const char* name, int64_t ndim) {
  return c10::maybe_wrap_dim(call.arg(name).toInt(), ndim);
}

Map permute(const OpCall& call) { return call.dims_arg("dims", call.inputs[0].dim()); }

Map transpose(const OpCall& call) {
  auto ndim = call.inputs[0].dim();
  auto map = identity(ndim);
  if (ndim) std::swap(map[dim_arg(call, "dim0", ndim)], map[dim_arg(call, "dim1", ndim)]);
  return map;
}

Map t(const OpCall& call) {
  auto map = identity(call.inputs[0].dim());
  std::reverse(map.begin(), map.end());
  return map;
}

Map unsqueeze(const OpCall& call) {
  auto map = identity(call.inputs[0].dim());
  map.insert(map.begin() + dim_arg(call, "dim", call.inputs[0].dim() + 1), -1);
  return map;
}

// The dims that squeeze takes away. Without an argument those are all of extent 1; an empty list names none.
Map squeezed(const OpCall& call) {
  auto& sizes = call.inputs[0].sizes;
  Map gone;
  if (call.arg_index("dim") >= 0 && call.arg("dim").isIntList() && call.arg("dim").toIntVector().empty()) return gone;
  for (auto d : call.dims_arg("dim", sizes.size())) {
    if (d < call.inputs[0].dim() && sizes[d] == 1) gone.push_back(d);
  }
  return gone;
}

Map squeeze(const OpCall& call) {
  auto gone = squeezed(call);
  Map map;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (std::find(gone.begin(), gone.end(), d) == gone.end()) map.push_back(d);
  }
  return map;
}

Map expand(const OpCall& call) {
  auto& in = call.inputs[0];
  auto& out = call.outputs[0];
  Map map(out.dim(), -1);
  for (int64_t d = 0; d < in.dim(); ++d) {
    auto to = d + out.dim() - in.dim();
    if (in.sizes[d] == out.sizes[to]) map[to] = d;
  }
  return map;
}

// select, slice, split, unbind: every dim but the one they work on may be cut.
Map without(const OpCall& call, bool removed) {
  auto ndim = call.inputs[0].dim();
  auto gone = ndim ? c10::maybe_wrap_dim(call.int_arg("dim", 0), ndim) : 0;
  Map map;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != gone) map.push_back(d);
    else if (!removed) map.push_back(-1);
  }
  return map;
}

Map slice(const OpCall& call) {
  auto map = without(call, false);
  auto dim = c10::maybe_wrap_dim(call.int_arg("dim", 0), call.inputs[0].dim());
  if (call.inputs[0].sizes == call.outputs[0].sizes) map[dim] = dim;  // the whole of it
  return map;
}

Map keep_last_pairs(const OpCall& call) { return identity(std::min(call.inputs[0].dim(), call.outputs[0].dim())); }

Map keep(const OpCall& call) { return identity(call.inputs[0].dim()); }

// Which dims go is a matter of the whole: an extent of 2 may be 1 on a rank, and stays.
void squeeze_whole(LocalCall& local) {
  auto self = local.stack[0].toTensor();
  auto gone = squeezed(local.call);
  local.stack = {gone.empty() ? self.alias() : self.squeeze(gone)};
}

// Conjugation is real-linear; so is reading a complex number as two reals.
Rule linear_view(std::function<Map(const OpCall&)> map) {
  auto any = view(map);
  Rule rule = rows("view", [any](const OpCall& call) {
    Rows rows;
    for (auto& row : any.rows(call)) {
      if (!is_partial(row.in[0]) || row.in[0] == P_sum || row.in[0] == P_avg) rows.push_back(row);
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// A lazily conjugated shard does not hold the parts that it shows; a copy does.
void view_values_as_real(LocalCall& local) {
  local.stack = {at::view_as_real(local.stack[0].toTensor().resolve_conj())};
}

// Strides speak of the whole tensor, so the whole must be laid out in memory as they say.
Rule as_strided() {
  auto pending = [](const OpCall&) {
    Rows rows;
    for (auto op : kReduceOps) rows.push_back({{P(op)}, {P(op)}});
    return rows;
  };
  return rows("view", pending).with_local([](LocalCall& local) {
    auto self = local.stack[0].toTensor();
    auto& form = local.call.inputs[0];
    if (self.strides() != c10::IntArrayRef(form.strides) || self.storage_offset() != 0) {
      self = at::empty_strided(form.sizes, form.strides, self.options()).copy_(self);
    }
    auto offset = local.stack[3].isNone() ? std::optional<int64_t>() : local.stack[3].toInt();
    local.stack = {self.as_strided(local.stack[1].toIntVector(), local.stack[2].toIntVector(), offset)};
  });
}

}  // namespace

void add_view_rules(RuleTable& t_) {
  auto removes = [](const OpCall& call) { return without(call, true); };
  auto keeps = [](const OpCall& call) { return without(call, false); };
  t_["aten::view"] = t_["aten::_unsafe_view"] = t_["aten::_reshape_alias"] =
      reshape().with_size_args({"size"});
  t_["aten::view"].local_only_if_strided = t_["aten::_unsafe_view"].local_only_if_strided = true;
  t_["aten::permute"] = view(permute);
  t_["aten::transpose.int"] = view(transpose);
  t_["aten::t"] = view(t);
  t_["aten::unsqueeze"] = view(unsqueeze);
  t_["aten::squeeze"] = t_["aten::squeeze.dim"] = t_["aten::squeeze.dims"] = view(squeeze).with_local(squeeze_whole);
  t_["aten::expand"] = view(expand).with_size_args({"size"});
  t_["aten::select.int"] = t_["aten::unbind.int"] = view(removes);
  t_["aten::slice.Tensor"] = view(slice);
  t_["aten::split.Tensor"] = t_["aten::split_with_sizes"] = t_["aten::unsafe_split.Tensor"] =
      t_["aten::unsafe_split_with_sizes"] = view(keeps);
  t_["aten::alias"] = t_["aten::detach"] = t_["aten::lift_fresh"] = view(keep);
  t_["aten::_conj"] = t_["aten::_neg_view"] = linear_view(keep);
  t_["aten::view_as_complex"] = linear_view(keep_last_pairs);
  t_["aten::view_as_real"] = linear_view(keep_last_pairs).with_local(view_values_as_real);
  t_["aten::view_as_real"].local_only_if_strided = true;
  t_["aten::as_strided"] = as_strided();
}

}  // namespace intarsia
