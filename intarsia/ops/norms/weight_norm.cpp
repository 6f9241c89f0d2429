// Norms of the slices along one dim, which are independent: that dim may be sharded.

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

int64_t sliced_dim(const OpCall& call) { return call.dim_arg("dim", call.inputs[0].dim()); }

Rule renorm() {
  Rule rule = rows("norm", [](const OpCall& call) {
    auto dim = sliced_dim(call);
    return Rows{{{S(dim)}, {S(dim)}}};
  });
  rule.aligned = true;
  return rule;
}

// weight_norm(v, g, dim) and its gradient: one length per slice along `dim`.
Rule weight_norm(size_t tensors) {
  return unless_empty(rows("norm", [tensors](const OpCall& call) {
                        auto dim = sliced_dim(call);
                        return Rows{{Placements(tensors, S(dim)), {S(dim), S(dim)}}};
                      }).with_shapes([](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto v = sizes_of(call.inputs[0]);
    std::vector<int64_t> lengths(v.size(), 1);
    auto dim = sliced_dim(call);
    lengths[dim] = v[dim];
    return {v, lengths};
  }));
}

}  // namespace

void add_weight_norm(RuleTable& t) {
  t.add("aten::renorm", renorm());
  t.add("aten::_weight_norm_interface", weight_norm(2));
  t.add("aten::_weight_norm_interface_backward", weight_norm(4));
}

}  // namespace intarsia
