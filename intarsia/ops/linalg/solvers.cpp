// Linear systems: right-hand sides are solved one by one, so they may be sharded like batches.

#include "intarsia/ops/linalg/batched.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Right-hand sides, input `b`, are columns, or rows if the matrix is on the other side. Solutions are linear in them.
Rule solve(size_t b) {
  auto rule = batched();
  rule.rows = [b, batches = rule.rows](const OpCall& call) {
    auto rows = batches(call);
    auto add = [&](const Placement& sides) {
      Row row{Placements(call.inputs.size(), R), Placements(call.outputs.size(), R)};
      row.in[b] = row.out[0] = sides;
      rows.push_back(std::move(row));
    };
    for (auto& pending : {P_sum, P_avg}) add(pending);
    auto dims = call.inputs[b].dim();
    if (call.inputs[b ? 0 : 1].dim() != dims || call.outputs[0].dim() != dims) return rows;
    add(S(dims - (call.bool_arg("left", true) ? 1 : 2)));
    return rows;
  };
  return rule;
}

// Of matrices [..., m, m] and right-hand sides [..., m, k], input `b` of two.
auto solution(size_t b) {
  return [b](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    if (!are_matrices(call, {0, 1})) return {};
    auto shape = shared_batch(call, 0, 1);
    auto& sides = call.inputs[b].sizes;
    shape.insert(shape.end(), sides.end() - 2, sides.end());
    return {shape};
  };
}

}  // namespace

void add_solvers(RuleTable& t) {
  t.add("aten::cholesky_solve", solve(0).with_shapes(solution(0)).column_major());
  t.add("aten::triangular_solve", solve(0));
  t.add("aten::_linalg_solve_ex", solve(1));
  t.add("aten::linalg_solve_triangular", solve(1).with_shapes(solution(1)).column_major());
  t.add({"aten::linalg_lu_solve", "aten::linalg_ldl_solve"}, solve(2).refusing({1}));
  t.add("aten::ormqr", solve(2).like_input(2).column_major());
}

}  // namespace intarsia
