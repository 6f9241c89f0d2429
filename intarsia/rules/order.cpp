// Ops along one dim whose elements depend on each other's order, and linear algebra over batches: the other dims may be
// cut. What happens along a cut dim is in ops/order.cpp.

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// Every output has the shape of the input, up to the extent of `dim`.
Rule scan(Rows pending = {}, int64_t otherwise = 0) {
  Rule rule = rows("scan", [pending, otherwise](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    if (ndim == 0) return rows;
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", otherwise), ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != dim) rows.push_back({Placements(call.inputs.size(), S(d)), Placements(call.outputs.size(), S(d))});
    }
    for (auto& row : pending) {
      if (survives_casts(row, call)) rows.push_back(row);
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// One element per line along `dim`; without a dim, one of all.
Rule pick(int64_t otherwise = 0) {
  Rule rule = rows("pick", [otherwise](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    auto index = call.arg_index("dim");
    if (ndim == 0 || index < 0 || (call.args[index].isNone() && call.schema.name() != "aten::kthvalue")) return rows;
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", otherwise), ndim);
    bool keep = call.bool_arg("keepdim", false);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d == dim) continue;
      rows.push_back({{S(d)}, Placements(call.outputs.size(), S(!keep && d > dim ? d - 1 : d))});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// Linear algebra works on the last dims; leading dims that all tensors share are batches.
Rule batched(int64_t core = 2) {
  Rule rule = rows("batched", [core](const OpCall& call) {
    Rows rows;
    auto& first = call.inputs[0];
    for (int64_t d = 0; d + core < first.dim(); ++d) {
      Row row;
      bool shared = true;
      for (auto& form : call.inputs) {
        shared = shared && (!form.defined || (form.dim() > d && form.sizes[d] == first.sizes[d]));
        row.in.push_back(form.defined ? S(d) : R);
      }
      for (auto& form : call.outputs) {
        bool has = form.defined && form.dim() > d && form.sizes[d] == first.sizes[d];
        row.out.push_back(has ? S(d) : R);
      }
      if (shared) rows.push_back(std::move(row));
    }
    return rows;
  });
  return rule;
}

// Right-hand sides, input `b`, are solved for one by one: columns, or rows where the matrix stands on the other side.
Rule solve(size_t b) {
  auto rule = batched();
  rule.rows = [b, batches = rule.rows](const OpCall& call) {
    auto rows = batches(call);
    auto dims = call.inputs[b].dim();
    if (call.inputs[b ? 0 : 1].dim() != dims || call.outputs[0].dim() != dims) return rows;
    Row row{Placements(call.inputs.size(), R), Placements(call.outputs.size(), R)};
    row.in[b] = row.out[0] = S(dims - (call.bool_arg("left", true) ? 1 : 2));
    rows.push_back(std::move(row));
    return rows;
  };
  return rule;
}

// The error of a matrix names its number in the batch: the plain op speaks, on a batch as long as the whole whose other
// matrices are without fault.
void name_batch_element(LocalCall& local) {
  auto given = local.stack;
  try {
    local.call_plain();
  } catch (const c10::LinAlgError&) {
    auto mine = given[0].toTensor();
    auto& sizes = local.call.inputs[0].sizes;
    auto whole = at::eye(mine.size(-2), mine.size(-1), mine.options()).expand(sizes).clone();
    auto part = whole;
    auto offset = local_offset(*local.in[0], sizes, local.slot.coordinate);
    for (int64_t d = 0; d < mine.dim(); ++d) part = part.narrow(d, offset[d], mine.size(d));
    part.copy_(mine);
    local.stack = given;
    local.stack[0] = whole;
    local.call_plain();
    throw;
  }
}

// The product of vectors in space: pointwise but along `dim`.
Rule cross() {
  auto everywhere = pointwise();
  Rule rule = rows("scan", [everywhere](const OpCall& call) {
    Rows rows;
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", -1), call.outputs[0].dim());
    for (auto& row : everywhere.rows(call)) {
      if (cut_dim(row.out[0]) != dim) rows.push_back(row);
    }
    for (auto& pending : {P_sum, P_avg}) {
      rows.push_back({{pending, R}, {pending}});
      rows.push_back({{R, pending}, {pending}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// Distances between the rows of x1 [..., p, m] and those of x2 [..., r, m], as [..., p, r].
Rule cdist() {
  Rule rule = rows("cdist", [](const OpCall& call) {
    Rows rows;
    auto &x1 = call.inputs[0], &x2 = call.inputs[1];
    auto p1 = x1.dim() - 2, p2 = x2.dim() - 2, out = call.outputs[0].dim();
    for (int64_t d = 0; d < p1; ++d) {
      if (p1 == p2 && x1.sizes[d] == x2.sizes[d]) rows.push_back({{S(d), S(d)}, {S(d)}});
    }
    rows.push_back({{S(p1), R}, {S(out - 2)}});
    rows.push_back({{R, S(p2)}, {S(out - 1)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes {
    auto near = sizes_of(call.inputs[0]), far = sizes_of(call.inputs[1]);
    auto shape = at::infer_size({near.data(), near.size() - 2}, {far.data(), far.size() - 2});
    shape.push_back(near[near.size() - 2]);
    shape.push_back(far[far.size() - 2]);
    return {shape};
  };
  rule.dtypes = [](const OpCall& call) {
    return std::vector<c10::ScalarType>{c10::promoteTypes(call.inputs[0].dtype, call.inputs[1].dtype)};
  };
  return rule;
}

// The gradient for x1 is a sum over the rows of x2.
Rule cdist_backward() {
  Rule rule = rows("cdist", [](const OpCall& call) {
    Rows rows;
    auto &x1 = call.inputs[1], &x2 = call.inputs[2];
    auto p = x1.dim() - 2;
    if (x1.dim() != x2.dim() || call.inputs[0].dim() != x1.dim()) return rows;
    for (int64_t d = 0; d < p; ++d) {
      if (x1.sizes[d] == x2.sizes[d]) rows.push_back({{S(d), S(d), S(d), S(d)}, {S(d)}});
    }
    rows.push_back({{S(p), S(p), R, S(p)}, {S(p)}});
    rows.push_back({{S(p + 1), R, S(p), S(p + 1)}, {P_sum}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1])}; };
  rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[1].dtype}; };
  return rule;
}

// glu halves `dim`.
Rule gate(size_t tensors) {
  Rule rule = rows("scan", [tensors](const OpCall& call) {
    Rows rows;
    auto ndim = call.inputs[0].dim();
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", -1), ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != dim) rows.push_back({Placements(tensors, S(d)), {S(d)}});
    }
    if (tensors == 2) rows.push_back({{P_sum, R}, {P_sum}});  // linear in the gradient
    return rows;
  });
  if (tensors == 2) {
    rule.shapes = [](const OpCall& call) -> Shapes { return {sizes_of(call.inputs[1])}; };
    rule.dtypes = [](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[1].dtype}; };
  }
  rule.aligned = true;
  return rule;
}

Rule whole() {
  return rows("whole", [](const OpCall&) { return Rows(); });
}

}  // namespace

void add_order_rules(RuleTable& t) {
  const Rows linear = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};
  t["aten::cumsum"] = scan(linear);
  for (auto op : {"cumprod", "logcumsumexp", "_logcumsumexp", "cummax", "cummin"}) {
    t[std::string("aten::") + op] = scan();
  }
  for (auto op : {"topk", "sort", "sort.stable"}) t[std::string("aten::") + op] = scan({}, -1);
  for (auto op : {"argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim"}) {
    t[std::string("aten::") + op] = pick();
  }
  for (auto op : {"kthvalue", "mode"}) t[std::string("aten::") + op] = pick(-1);
  t["aten::aminmax"] = pick();
  // The middle and what occurs where: questions to all of the values at once.
  for (auto op : {"median", "nanmedian", "masked_select", "nonzero", "bincount", "histc", "unique_consecutive", "_unique2",
                  "unique_dim", "nonzero_static", "_unique", "unique_dim_consecutive", "_pdist_forward", "_pdist_backward",
                  "masked_scatter", "masked_scatter_backward", "put", "repeat_interleave.Tensor", "histogram.bins_tensor",
                  "histogram.bin_ct", "_linalg_check_errors"}) {
    t[std::string("aten::") + op] = whole();
  }

  for (auto op : {"linalg_cholesky_ex", "linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet",
                  "linalg_ldl_factor_ex", "linalg_matrix_exp", "linalg_eig", "_linalg_eigvals", "_linalg_eigh",
                  "linalg_inv_ex", "_linalg_svd", "linalg_qr", "cholesky", "cholesky_inverse", "geqrf",
                  "linalg_householder_product", "lu_unpack", "linalg_pinv.atol_rtol_tensor"}) {
    t[std::string("aten::") + op] = batched();
  }
  for (auto op : {"cholesky_solve", "triangular_solve"}) t[std::string("aten::") + op] = solve(0);
  for (auto op : {"_linalg_solve_ex", "linalg_solve_triangular"}) t[std::string("aten::") + op] = solve(1);
  for (auto op : {"linalg_lu_solve", "linalg_ldl_solve", "ormqr"}) t[std::string("aten::") + op] = solve(2);
  for (auto op : {"cholesky", "cholesky_inverse", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_pinv.atol_rtol_tensor"}) {
    t[std::string("aten::") + op].local = name_batch_element;
  }
  t["aten::linalg_matrix_exp"].shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {{call.inputs[0].sizes.begin(), call.inputs[0].sizes.end()}};
  };
  t["aten::linalg_cross"] = cross();
  t["aten::_cdist_forward"] = t["aten::_euclidean_dist"] = cdist();
  t["aten::_cdist_backward"] = cdist_backward();
  t["aten::glu"] = gate(1);
  t["aten::glu_backward"] = gate(2);
}

}  // namespace intarsia
