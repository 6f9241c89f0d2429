#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

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
  t["aten::addmv"] = add_einsum("mk,k->m");
  t["aten::addr"] = add_einsum("m,n->mn");
}

}  // namespace intarsia
