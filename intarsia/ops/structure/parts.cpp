#include "intarsia/ops/structure/parts.h"

#include <algorithm>

namespace intarsia {
namespace {

Rows put_rows(const OpCall& call, const std::vector<const char*>& names, bool lacks) {
  Rows rows;
  auto ndim = call.outputs[0].dim();
  std::vector<int64_t> dims;
  for (auto name : names) dims.push_back(call.dim_arg(name, ndim));
  int64_t kept = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    auto own = lacks ? kept++ : d;
    rows.push_back({call.inputs.size() == 1 ? Placements{S(own)} : Placements{S(d), S(own)}, {S(d)}});
  }
  return rows;
}

}  // namespace

const std::vector<ReduceOp> kKeepsZero = {ReduceOp::sum, ReduceOp::avg, ReduceOp::bor, ReduceOp::bxor};

void pass_pending(const OpCall& call, Rows& rows) {
  add_for_any_reduction(rows, {Placements(call.inputs.size(), P_sum), Placements(call.outputs.size(), P_sum)});
}

void pass_pending(const OpCall& call, Rows& rows, const std::vector<ReduceOp>& ops) {
  for (auto op : ops) rows.push_back({Placements(call.inputs.size(), P(op)), Placements(call.outputs.size(), P(op))});
}

Rule put_into_zeros(const char* family, std::vector<const char*> dims, bool lacks, std::vector<ReduceOp> pending) {
  Rule rule = rows(family, [=](const OpCall& call) {
    auto rows = put_rows(call, dims, lacks);
    pass_pending(call, rows, pending);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule part_gradient(std::vector<const char*> dims, bool lacks, std::vector<ReduceOp> pending) {
  return put_into_zeros("view backward", std::move(dims), lacks, std::move(pending)).with_size_args({"input_sizes"});
}

Rule put_into(std::vector<const char*> dims, bool lacks) {
  Rule rule = rows("put", [=](const OpCall& call) {
    auto rows = put_rows(call, dims, lacks);
    if (call.inputs[0].dtype == call.inputs[1].dtype) pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

}  // namespace intarsia
