// Special functions and rarer pointwise ops: every dim may be cut, nothing pending passes unless a reason stands here.

#include <c10/core/WrapDimMinimal.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/empty.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

void add(RuleTable& t, const std::string& op, Rows pending = {}) { t["aten::" + op] = pointwise(std::move(pending)); }

// What a look-up finds is contiguous, whatever the order of the tensor that is looked up.
auto contiguous_like(size_t input) {
  return [input](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto strides = c10::contiguous_strides(call.inputs[input].sizes);
    return {{strides.begin(), strides.end()}};
  };
}

// op(elements, whole, ...): the first tensor is looked up in the second, element by element. Where the second is cut,
// every rank has an answer for its part, and `joined` tells how they combine: places in sorted rows add up.
Rule looked_up(std::function<Placement(const OpCall&)> joined) {
  Rule rule = rows("look-up", [joined](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {joined(call)}});
    for (int64_t d = 0; d < call.outputs[0].dim(); ++d) {
      Row row{Placements(call.inputs.size(), R), {S(d)}};
      row.in[0] = S(d);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
  rule.strides = contiguous_like(0);
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
  rule.strides = contiguous_like(1);
  return rule;
}

// The same bits as another dtype. A change of width changes the last dim.
Rule view_as_dtype() {
  return rows("view", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (call.inputs[0].sizes[d] == call.outputs[0].sizes[d]) rows.push_back({{S(d)}, {S(d)}});
    }
    return rows;
  });
}

// take(self, index) reads self as a line.
Rule take() {
  Rule rule = rows("gather", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[1].dim(); ++d) rows.push_back({{R, S(d)}, {S(d)}});
    for (auto op : kReduceOps) rows.push_back({{P(op), R}, {P(op)}});
    return rows;
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {{call.inputs[1].sizes.begin(), call.inputs[1].sizes.end()}};
  };
  return rule;
}

// Slices along `dim` are on their own.
Rule renorm() {
  Rule rule = rows("norm", [](const OpCall& call) {
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", 0), call.inputs[0].dim());
    return Rows{{{S(dim)}, {S(dim)}}};
  });
  rule.aligned = true;
  return rule;
}

// weight_norm(v, g, dim) and its gradient: one length per slice along `dim`.
Rule weight_norm(size_t tensors) {
  Rule rule = rows("norm", [tensors](const OpCall& call) {
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", 0), call.inputs[0].dim());
    return Rows{{Placements(tensors, S(dim)), {S(dim), S(dim)}}};
  });
  rule.shapes = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto& v = call.inputs[0].sizes;
    std::vector<int64_t> lengths(v.size(), 1);
    auto dim = c10::maybe_wrap_dim(call.int_arg("dim", 0), call.inputs[0].dim());
    lengths[dim] = v[dim];
    return {{v.begin(), v.end()}, lengths};
  };
  return unless_empty(std::move(rule));
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
  add(t, "conj_physical", {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}});
  for (auto op : {"log_sigmoid_forward", "_standard_gamma_grad", "_add_relu.Tensor", "_add_relu.Scalar"}) add(t, op);
  // Linear in the gradient, which comes first.
  for (auto op : {"log_sigmoid_backward", "_prelu_kernel_backward", "rrelu_with_noise_backward"}) {
    add(t, op, {{{P_sum, R, R}, {P_sum}}, {{P_avg, R, R}, {P_avg}}});
  }
  t["aten::bucketize.Tensor"] = looked_up([](const OpCall&) { return P_sum; });
  t["aten::isin.Tensor_Tensor"] = looked_up([](const OpCall& call) {
    return P(call.bool_arg("invert", false) ? ReduceOp::band : ReduceOp::bor);
  });
  t["aten::isin.Tensor_Tensor"].local = [](LocalCall& local) {  // its quick way looks at them as a row
    for (auto i : {0, 1}) local.stack[i] = local.stack[i].toTensor().contiguous();
    local.call_plain();
  };
  t.decompose("aten::isin.Scalar_Tensor", [](std::vector<c10::IValue>& stack) {  // whose meta kernel tells another shape
    auto element = at::scalar_tensor(stack[0].toScalar(), at::TensorOptions(stack[0].toScalar().type()));
    stack = {at::isin(element, stack[1].toTensor(), stack[2].toBool(), stack[3].toBool())};
    return true;
  });
  t["aten::searchsorted.Tensor"] = searchsorted();
  for (auto op : {"aten::bucketize.Scalar", "aten::searchsorted.Scalar"}) {
    t[op] = rows("look-up", [](const OpCall& call) {
      Row row{Placements(call.inputs.size(), R), {P_sum}};
      row.in[0] = S(0);
      bool alone = call.inputs[0].dim() == 1 && (call.inputs.size() == 1 || !call.inputs[1].defined);
      return alone ? Rows{row} : Rows();
    });
  }
  t["aten::isin.Scalar_Tensor"] = rows("look-up", [](const OpCall& call) {
    Rows rows;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      rows.push_back({{S(d)}, {P(call.bool_arg("invert", false) ? ReduceOp::band : ReduceOp::bor)}});
    }
    return rows;
  });
  t["aten::view.dtype"] = view_as_dtype();
  t["aten::take"] = take();
  t["aten::renorm"] = renorm();
  t["aten::_weight_norm_interface"] = weight_norm(2);
  t["aten::_weight_norm_interface_backward"] = weight_norm(4);
}

}  // namespace intarsia
