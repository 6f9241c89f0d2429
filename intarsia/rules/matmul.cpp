#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Where whole numbers are multiplied, beta and alpha are taken as whole numbers; but not by a kernel that has nothing to
// multiply, as on a rank without any of the contracted dim.
void add_product(LocalCall& local) {
  auto& schema = local.call.schema;
  bool whole = at::isIntegralType(local.call.inputs[0].dtype, true);
  for (auto name : {"beta", "alpha"}) {
    auto arg = schema.argumentIndexWithName(name);
    if (arg && whole) local.stack[*arg] = local.stack[*arg].toScalar().toLong();
  }
  local.call_plain();
}

// addmm(c, a, b) = beta * c + alpha * (a @ b). A cut of the contracted dim would leave a pending sum on the product
// only, so there c must be pending too. c broadcasts against the product.
Rule add_einsum(const std::string& equation) {
  auto product = einsum(equation);
  Rule rule = rows("add " + product.family, [product](const OpCall& call) {
    std::vector<TensorForm> factors = {call.inputs[1], call.inputs[2]};
    OpCall inner{call.schema, call.args, factors, call.outputs};
    auto& c = call.inputs[0];
    Rows rows;
    for (auto& row : product.rows(inner)) {
      Placement first = row.out[0];
      if (auto dim = cut_dim(first); dim >= 0) {
        auto own = dim - (call.outputs[0].dim() - c.dim());
        first = own >= 0 && c.sizes[own] == call.outputs[0].sizes[dim] ? S(own) : R;
      }
      rows.push_back({{first, row.in[0], row.in[1]}, row.out});
    }
    return rows;
  });
  rule.aligned = true;
  rule.local = add_product;
  rule.plain_does = [](const OpCall& call, auto, auto, auto&) { return !at::isIntegralType(call.inputs[0].dtype, true); };
  return rule;
}

// linear(x [..., k], weight [n, k], bias [n]): as addmm, with any number of leading dims, which stay as they are.
Rule linear() {
  Rule rule = rows("add einsum ...k,nk->...n", [](const OpCall& call) {
    auto last = call.inputs[0].dim() - 1;
    bool bias = call.inputs[2].defined;
    auto with_bias = [&](const Placement& p) { return bias ? p : R; };
    Rows rows = {{{R, S(0), with_bias(S(0))}, {S(last)}}, {{S(last), S(1), with_bias(P_sum)}, {P_sum}}};
    for (int64_t d = 0; d < last; ++d) rows.push_back({{S(d), R, R}, {S(d)}});
    for (auto& pending : {P_sum, P_avg}) {
      rows.push_back({{pending, R, with_bias(pending)}, {pending}});
      rows.push_back({{R, pending, with_bias(pending)}, {pending}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// contract(a [..., n], b [..., k]) -> [n, k]: leading dims are summed away.
Rule contract() {
  Rule rule = rows("einsum ...n,...k->nk", [](const OpCall& call) {
    auto last = call.inputs[0].dim() - 1;
    Rows rows = {{{S(last), R}, {S(0)}}, {{R, S(last)}, {S(1)}}};
    for (int64_t d = 0; d < last; ++d) rows.push_back({{S(d), S(d)}, {P_sum}});
    for (auto& pending : {P_sum, P_avg}) {
      rows.push_back({{pending, R}, {pending}});
      rows.push_back({{R, pending}, {pending}});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

}  // namespace

void add_matmul_rules(RuleTable& t) {
  t["aten::mm"] = einsum("mk,kn->mn");
  t["aten::bmm"] = einsum("bmk,bkn->bmn");
  t["aten::mv"] = einsum("mk,k->m");
  t["aten::dot"] = t["aten::vdot"] = einsum("k,k->");
  t["aten::addmm"] = add_einsum("mk,kn->mn");
  t["aten::baddbmm"] = add_einsum("bmk,bkn->bmn");
  t["aten::addbmm"] = add_einsum("bmk,bkn->mn");
  t["aten::addmv"] = add_einsum("mk,k->m");
  t["aten::linear"] = linear();
  t["aten::matmul"] = einsum("...mk,...kn->...mn");
  t["intarsia::contract"] = contract();
  t["aten::addr"] = add_einsum("m,n->mn");
}

}  // namespace intarsia
