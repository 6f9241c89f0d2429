// Ops that join, repeat and rearrange: no element is computed, so whatever is pending passes wherever all of it does.
// What has to move along a cut dim is done by ops/structure.cpp.

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

int64_t dim_of(const OpCall& call, int64_t ndim, const char* name = "dim") {
  return c10::maybe_wrap_dim(call.int_arg(name, 0), ndim);
}

void pass_pending(const OpCall& call, Rows& rows, std::vector<ReduceOp> ops = kReduceOps) {
  for (auto op : ops) rows.push_back({Placements(call.inputs.size(), P(op)), Placements(call.outputs.size(), P(op))});
}

// Zeros enter the result: a pending reduction must keep them.
const std::vector<ReduceOp> kKeepsZero = {ReduceOp::sum, ReduceOp::avg, ReduceOp::bor, ReduceOp::bxor};

// cat: every dim but the joined one. Old code may join empty vectors to anything: those stay whole.
Rule cat() {
  Rule rule = rows("join", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.outputs[0].dim();
    auto joined = dim_of(call, ndim);
    auto placed = [&](const Placement& p) {
      Row row{{}, {p}};
      for (auto& form : call.inputs) row.in.push_back(form.dim() == 1 && form.sizes[0] == 0 && ndim != 1 ? R : p);
      return row;
    };
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != joined) rows.push_back(placed(S(d)));
    }
    bool one_dtype = std::all_of(call.inputs.begin(), call.inputs.end(),
                                 [&](auto& form) { return form.dtype == call.outputs[0].dtype; });
    for (auto op : kReduceOps) {
      if (one_dtype) rows.push_back(placed(P(op)));
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule stack() {
  Rule rule = rows("join", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.outputs[0].dim();
    auto fresh = dim_of(call, ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != fresh) rows.push_back({Placements(call.inputs.size(), S(d < fresh ? d : d - 1)), {S(d)}});
    }
    bool one_dtype = std::all_of(call.inputs.begin(), call.inputs.end(),
                                 [&](auto& form) { return form.dtype == call.outputs[0].dtype; });
    if (one_dtype) pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// Every dim but the named ones.
Rule rearrange(const char* dims, bool none_means_all) {
  Rule rule = rows("rearrange", [dims, none_means_all](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    bool none = call.arg(dims).toIntVector().empty();
    auto moved = none && !none_means_all ? std::vector<int64_t>() : call.dims_arg(dims, ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (std::find(moved.begin(), moved.end(), d) == moved.end()) rows.push_back({{S(d)}, {S(d)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// Dims that are repeated once stay cut. New dims come in front.
Rule repeat() {
  Rule rule = rows("rearrange", [](const OpCall& call) {
    Rows rows;
    auto repeats = call.arg("repeats").toIntVector();
    auto added = static_cast<int64_t>(repeats.size()) - call.inputs[0].dim();
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (repeats[d + added] == 1) rows.push_back({{S(d)}, {S(d + added)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// tril and triu keep an element by its place in the whole: a shard that begins at row r and column c sees the diagonal
// moved by r - c.
Rule triangle(bool lower) {
  return rows("triangle", [](const OpCall& call) {
           Rows rows;
           for (int64_t d = 0; d < call.inputs[0].dim(); ++d) rows.push_back({{S(d)}, {S(d)}});
           pass_pending(call, rows, kKeepsZero);
           return rows;
         })
      .with_local([lower](LocalCall& local) {
        auto self = local.stack[0].toTensor();
        auto offset = local_offset(*local.in[0], local.call.inputs[0].sizes, local.slot.coordinate);
        auto ndim = self.dim();
        auto diagonal = local.stack[1].toInt() + offset[ndim - 2] - offset[ndim - 1];
        local.stack = {lower ? at::tril(self, diagonal) : at::triu(self, diagonal)};
      });
}

// diagonal(dim1, dim2) takes two dims away and adds one at the end.
Rule diagonal() {
  return view([](const OpCall& call) {
    std::vector<int64_t> map;
    auto ndim = call.inputs[0].dim();
    auto dim1 = dim_of(call, ndim, "dim1"), dim2 = dim_of(call, ndim, "dim2");
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != dim1 && d != dim2) map.push_back(d);
    }
    map.push_back(-1);
    return map;
  });
}

// A part goes into a whole: every dim of the whole but the named ones may be cut. The part has these dims, too, or lacks them.
Rows put_rows(const OpCall& call, const std::vector<const char*>& names, bool lacks) {
  Rows rows;
  auto ndim = call.outputs[0].dim();
  std::vector<int64_t> dims;
  for (auto name : names) dims.push_back(dim_of(call, ndim, name));
  int64_t kept = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    auto own = lacks ? kept++ : d;
    rows.push_back({call.inputs.size() == 1 ? Placements{S(own)} : Placements{S(d), S(own)}, {S(d)}});
  }
  return rows;
}

// diag_embed, and gradients of views that show a part.
Rule put_into_zeros(const char* family, std::vector<const char*> dims, bool lacks, std::vector<ReduceOp> pending = kKeepsZero) {
  Rule rule = rows(family, [=](const OpCall& call) {
    auto rows = put_rows(call, dims, lacks);
    pass_pending(call, rows, pending);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule part_gradient(std::vector<const char*> dims, bool lacks, std::vector<ReduceOp> pending = kKeepsZero) {
  return put_into_zeros("view backward", std::move(dims), lacks, std::move(pending)).with_size_args({"input_sizes"});
}

// select_scatter and its like: the second tensor overwrites a part of the first.
Rule put_into(std::vector<const char*> dims, bool lacks) {
  Rule rule = rows("put", [=](const OpCall& call) {
    auto rows = put_rows(call, dims, lacks);
    if (call.inputs[0].dtype == call.inputs[1].dtype) pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// unfold(dimension, size, step): windows of one dim, with the places in a window as a new last dim.
Rule unfold() {
  return view([](const OpCall& call) {
    std::vector<int64_t> map;
    auto ndim = call.inputs[0].dim();
    auto dim = dim_of(call, ndim, "dimension");
    for (int64_t d = 0; d < ndim; ++d) map.push_back(d == dim ? -1 : d);
    map.push_back(-1);
    return map;
  });
}

// Channels and pixels change places; what lies before them does not.
Rule leading(int64_t inner) {
  Rule rule = rows("rearrange", [inner](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d + inner < call.inputs[0].dim(); ++d) rows.push_back({{S(d)}, {S(d)}});
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// narrow_copy(dim, start, length), channel_shuffle: all but one dim.
Rule all_but_dim(std::function<int64_t(const OpCall&)> dim_in) {
  Rule rule = rows("rearrange", [dim_in](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (d != dim_in(call)) rows.push_back({{S(d)}, {S(d)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

}  // namespace

void add_structure_rules(RuleTable& t) {
  t["aten::cat"] = cat();
  t["aten::stack"] = t["aten::_stack"] = stack();
  t["aten::flip"] = rearrange("dims", false);
  t["aten::roll"] = rearrange("dims", true);
  t["aten::rot90"] = rearrange("dims", true);
  t["aten::repeat"] = repeat();
  t["aten::tril"] = triangle(true);
  t["aten::triu"] = triangle(false);
  t["aten::diagonal"] = diagonal();
  t["aten::diagonal_backward"] = part_gradient({"dim1", "dim2"}, true);
  t["aten::diagonal_scatter"] = put_into({"dim1", "dim2"}, true);
  t["aten::diag_embed"] = put_into_zeros("rearrange", {"dim1", "dim2"}, true);
  t["aten::select_backward"] = part_gradient({"dim"}, true);
  t["aten::slice_backward"] = part_gradient({"dim"}, false);
  t["aten::select_scatter"] = put_into({"dim"}, true);
  t["aten::slice_scatter"] = put_into({"dim"}, false);
  t["aten::unfold"] = unfold();
  t["aten::unfold_backward"] = part_gradient({"dim"}, false, {ReduceOp::sum, ReduceOp::avg});
  t["aten::pixel_shuffle"] = leading(3);
  t["aten::pixel_unshuffle"] = unless_empty(leading(3));  // the plain op gets the shape wrong
  t["aten::narrow_copy"] = all_but_dim([](const OpCall& call) { return dim_of(call, call.inputs[0].dim()); });
  t["aten::channel_shuffle"] = all_but_dim([](const OpCall&) { return int64_t(1); });
}

}  // namespace intarsia
