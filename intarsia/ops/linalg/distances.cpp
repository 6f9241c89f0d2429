// Distances between vectors, and cross products.

#include "intarsia/ops/linalg/batched.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// The cross product: pointwise except along `dim`.
Rule cross() {
  auto everywhere = pointwise();
  Rule rule = rows("scan", [everywhere](const OpCall& call) {
    Rows rows;
    auto dim = call.dim_arg("dim", call.outputs[0].dim(), -1);
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
  return rows("cdist",
              [](const OpCall& call) {
                Rows rows;
                auto &x1 = call.inputs[0], &x2 = call.inputs[1];
                auto p1 = x1.dim() - 2, p2 = x2.dim() - 2, out = call.outputs[0].dim();
                for (int64_t d = 0; d < p1; ++d) {
                  if (p1 == p2 && x1.sizes[d] == x2.sizes[d]) rows.push_back({{S(d), S(d)}, {S(d)}});
                }
                rows.push_back({{S(p1), R}, {S(out - 2)}});
                rows.push_back({{R, S(p2)}, {S(out - 1)}});
                return rows;
              })
      .with_shapes([](const OpCall& call) -> Shapes {
        if (!are_matrices(call, {0, 1})) return {};
        auto shape = shared_batch(call, 0, 1);
        for (auto i : {0, 1}) shape.push_back(*(call.inputs[i].sizes.end() - 2));
        return {shape};
      })
      .with_dtypes([](const OpCall& call) {
        return std::vector<c10::ScalarType>{c10::promoteTypes(call.inputs[0].dtype, call.inputs[1].dtype)};
      });
}

// The gradient for x1 is a sum over the rows of x2.
Rule cdist_backward() {
  return rows("cdist",
              [](const OpCall& call) {
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
              })
      .like_input(1);
}

}  // namespace

void add_distances(RuleTable& t) {
  t.add("aten::linalg_cross", cross());
  t.add({"aten::_cdist_forward", "aten::_euclidean_dist"}, cdist());
  t.add("aten::_cdist_backward", cdist_backward());
}

}  // namespace intarsia
