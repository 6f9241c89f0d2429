// Special functions and rarer pointwise ops: every dim may be cut, nothing pending passes unless a reason stands here.

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

void add(RuleTable& t, const std::string& op, Rows pending = {}) { t["aten::" + op] = pointwise(std::move(pending)); }

// op(elements, whole, ...): the first tensor is looked up in the others, element by element.
Rule looked_up() {
  Rule rule = rows("look-up", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.outputs[0].dim(); ++d) {
      Row row{Placements(call.inputs.size(), R), {S(d)}};
      row.in[0] = S(d);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// searchsorted(sorted, values, sorter): leading dims of `sorted` pair up with those of `values`; a single sorted row
// serves values of any shape. Values may always be cut along the last dim, where they are independent.
Rule searchsorted() {
  Rule rule = rows("look-up", [](const OpCall& call) {
    Rows rows;
    auto &sorted = call.inputs[0], &values = call.inputs[1];
    for (int64_t d = 0; d < values.dim(); ++d) {
      bool paired = sorted.dim() > 1 && d + 1 < values.dim();
      Row row{Placements(call.inputs.size(), R), {S(d)}};
      row.in[1] = S(d);
      if (paired) row.in[0] = S(d);
      if (paired && call.inputs.size() > 2 && call.inputs[2].defined) row.in[2] = S(d);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

}  // namespace

void add_special_rules(RuleTable& t) {
  for (auto op : {"special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
                  "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
                  "special_modified_bessel_k1", "special_scaled_modified_bessel_k0",
                  "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0", "mvlgamma", "frexp.Tensor"}) {
    add(t, op);
  }
  for (std::string op : {"special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u",
                         "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w",
                         "special_hermite_polynomial_h", "special_hermite_polynomial_he",
                         "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
                         "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
                         "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w"}) {
    add(t, op);
    add(t, op + ".x_scalar");
    add(t, op + ".n_scalar");
  }
  for (auto op : {"special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar",
                  "special_xlog1py.self_scalar", "special_xlog1py.other_scalar", "bitwise_and.Scalar_Tensor",
                  "bitwise_or.Scalar_Tensor", "bitwise_xor.Scalar_Tensor", "bitwise_left_shift.Scalar_Tensor",
                  "bitwise_right_shift.Scalar_Tensor", "__lshift__.Tensor", "__lshift__.Scalar", "__rshift__.Tensor",
                  "__rshift__.Scalar"}) {
    add(t, op);
  }
  // Conjugation is real-linear.
  add(t, "_conj_physical", {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}});
  t["aten::bucketize.Tensor"] = t["aten::isin.Tensor_Tensor"] = looked_up();
  t["aten::searchsorted.Tensor"] = searchsorted();
}

}  // namespace intarsia
