// Pointwise ops, in families named by the algebra that makes their Partial rows right.

#include "intarsia/propagate/forms.h"
#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// f(a + b) = f(a) + f(b): sums and averages pass.
const Rows kLinear = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}};

// a <= b implies f(a) <= f(b), so f(max(a, b)) = max(f(a), f(b)): extremes pass.
const Rows kNonDecreasing = {{{P_max}, {P_max}}, {{P_min}, {P_min}}};

// a <= b implies f(a) >= f(b): max and min are swapped.
const Rows kNonIncreasing = {{{P_max}, {P_min}}, {{P_min}, {P_max}}};

// Non-decreasing in each operand while the other is replicated.
const Rows kNonDecreasingInEach = {
    {{P_max, R}, {P_max}}, {{P_min, R}, {P_min}}, {{R, P_max}, {P_max}}, {{R, P_min}, {P_min}}};

// The same for functions that are defined from some number on: below it they give NaN, which a smaller share must not
// bring in.
const Rows kNonDecreasingFrom = {{{P_min}, {P_min}}};

// -max(a, b) = min(-a, -b), and negation is linear.
const Rows kNegation = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}, {{P_max}, {P_min}}, {{P_min}, {P_max}}};

// Sums add up term by term. A replicated operand would be added once per rank under P(sum), so it may only meet avg,
// max and min. alpha can be negative: max and min on the left only.
const Rows kAdditive = {
    {{P_sum, P_sum}, {P_sum}}, {{P_avg, P_avg}, {P_avg}}, {{P_avg, R}, {P_avg}},
    {{R, P_avg}, {P_avg}},     {{P_max, R}, {P_max}},     {{P_min, R}, {P_min}},
};

// b - alpha * a
const Rows kSubtractFrom = {
    {{P_sum, P_sum}, {P_sum}}, {{P_avg, P_avg}, {P_avg}}, {{P_avg, R}, {P_avg}},
    {{R, P_avg}, {P_avg}},     {{R, P_max}, {P_max}},     {{R, P_min}, {P_min}},
};

// a + bi is linear in (a, b) together.
const Rows kPair = {{{P_sum, P_sum}, {P_sum}}, {{P_avg, P_avg}, {P_avg}}, {{P_avg, R}, {P_avg}}, {{R, P_avg}, {P_avg}}};

// A positive multiple.
const Rows kScale = {{{P_sum}, {P_sum}}, {{P_avg}, {P_avg}}, {{P_max}, {P_max}}, {{P_min}, {P_min}}};

// The same with the second operand a number.
const Rows kAddNumber = {{{P_avg}, {P_avg}}, {{P_max}, {P_max}}, {{P_min}, {P_min}}};

// A product is linear in each factor while the other is replicated. Products of pending products: factors regroup.
const Rows kMultiplicative = {
    {{P_sum, R}, {P_sum}},
    {{R, P_sum}, {P_sum}},
    {{P_avg, R}, {P_avg}},
    {{R, P_avg}, {P_avg}},
    {{P(ReduceOp::product), P(ReduceOp::product)}, {P(ReduceOp::product)}},
};

// A quotient is linear in the dividend.
const Rows kDividend = linear_in_first(2);

// a + value * b * c and a + value * b / c: the sum needs all its terms pending, each product only one factor.
const Rows kAddProduct = {
    {{P_sum, P_sum, R}, {P_sum}}, {{P_sum, R, P_sum}, {P_sum}}, {{P_avg, P_avg, R}, {P_avg}},
    {{P_avg, R, P_avg}, {P_avg}}, {{P_avg, R, R}, {P_avg}},     {{P_max, R, R}, {P_max}},
    {{P_min, R, R}, {P_min}},
};
const Rows kAddQuotient = {
    {{P_sum, P_sum, R}, {P_sum}}, {{P_avg, P_avg, R}, {P_avg}}, {{P_avg, R, R}, {P_avg}},
    {{P_max, R, R}, {P_max}},     {{P_min, R, R}, {P_min}},
};

// start + weight * (end - start), for one weight that is replicated: linear in (start, end) together.
const Rows kLerp = {{{P_sum, P_sum}, {P_sum}}, {{P_avg, P_avg}, {P_avg}}, {{P_avg, R}, {P_avg}}, {{R, P_avg}, {P_avg}}};
const Rows kLerpTensor = {{{P_sum, P_sum, R}, {P_sum}}, {{P_avg, P_avg, R}, {P_avg}}};

// where(condition, a, b) picks whole terms.
const Rows kWhere = {
    {{R, P_sum, P_sum}, {P_sum}}, {{R, P_avg, P_avg}, {P_avg}}, {{R, P_max, P_max}, {P_max}},
    {{R, P_min, P_min}, {P_min}}, {{R, P_avg, R}, {P_avg}},     {{R, R, P_avg}, {P_avg}},
    {{R, P_max, R}, {P_max}},     {{R, R, P_max}, {P_max}},     {{R, P_min, R}, {P_min}},
    {{R, R, P_min}, {P_min}},
};

// masked_fill(a, mask, value) is where(mask, value, a) with a replicated value.
const Rows kMaskedFill = {{{P_avg, R}, {P_avg}}, {{P_max, R}, {P_max}}, {{P_min, R}, {P_min}}};
const Rows kMaskedFillTensor = {{{P_avg, R, R}, {P_avg}}, {{P_max, R, R}, {P_max}}, {{P_min, R, R}, {P_min}}};

// max(max(a, b), c) = max(max(a, c), max(b, c)).
const Rows kMaximum = {{{P_max, P_max}, {P_max}},
                       {{P_max, R}, {P_max}},
                       {{R, P_max}, {P_max}},
                       {{P_min, R}, {P_min}},
                       {{R, P_min}, {P_min}}};
const Rows kMinimum = {{{P_min, P_min}, {P_min}},
                       {{P_min, R}, {P_min}},
                       {{R, P_min}, {P_min}},
                       {{P_max, R}, {P_max}},
                       {{R, P_max}, {P_max}}};

// Gradients are linear in the incoming gradient, which is the first operand.
const Rows kLinearInFirst = linear_in_first(2);

// Integers cannot be divided by zero.
std::vector<size_t> divisor(const OpCall& call) {
  auto whole = call.outputs[0].defined && c10::isIntegralType(call.outputs[0].dtype, /*includeBool=*/true);
  return whole && call.inputs.size() > 1 ? std::vector<size_t>{1} : std::vector<size_t>{};
}

// rsub(a, b) is b - a: the result has the strides of the difference, in which b comes first.
Rule subtract_from() {
  auto rule = pointwise(kSubtractFrom);
  rule.form.strides = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    return {at::sub(meta_tensor(call.inputs[1]), meta_tensor(call.inputs[0])).strides().vec()};
  };
  return rule;
}

// LibTorch has no meta kernel for it. The order in memory is that of any op on three operands, whatever their dtypes.
Rule where_rule() {
  auto rule = pointwise(kWhere);
  rule.form.strides = [](const OpCall& call) -> std::vector<std::vector<int64_t>> {
    auto operand = [&](size_t i) {
      auto form = call.inputs[i];
      form.dtype = at::kFloat;
      return meta_tensor(form);
    };
    return {at::lerp(operand(0), operand(1), operand(2)).strides().vec()};
  };
  return rule;
}

void add(RuleTable& t, std::initializer_list<const char*> ops, const Rows& rows) {
  for (auto op : ops) t.add(std::string("aten::") + op, pointwise(rows));
}

}  // namespace

void add_pointwise(RuleTable& t) {
  add(t, {"neg"}, kNegation);
  add(t, {"add.Tensor", "sub.Tensor"}, kAdditive);
  t.add("aten::rsub.Tensor", subtract_from());
  add(t, {"rsub.Scalar"}, {{{P_avg}, {P_avg}}});  // the number's factor may be negative
  add(t, {"complex"}, kPair);
  add(t, {"deg2rad", "rad2deg"}, kScale);
  add(t, {"masked_fill.Scalar"}, kMaskedFill);
  add(t, {"masked_fill.Tensor"}, kMaskedFillTensor);
  add(t, {"add.Scalar", "sub.Scalar"}, kAddNumber);
  add(t, {"mul.Tensor"}, kMultiplicative);
  add(t, {"mul.Scalar", "div.Scalar"}, kLinear);
  add(t, {"div.Tensor", "ldexp.Tensor", "polar"}, kDividend);  // ldexp and polar scale their first operand
  add(t, {"addcmul"}, kAddProduct);
  add(t, {"addcdiv"}, kAddQuotient);
  add(t, {"lerp.Scalar"}, kLerp);
  add(t, {"lerp.Tensor"}, kLerpTensor);
  t.add("aten::where.self", where_rule());
  add(t, {"maximum"}, kMaximum);
  add(t, {"minimum"}, kMinimum);

  // clamp is non-decreasing in its input; bounds are numbers.
  add(t, {"relu",  "sigmoid", "tanh",      "exp",       "exp2",     "expm1",      "erf",
          "atan",  "asinh",   "sinh",      "ceil",      "floor",    "round",      "round.decimals",
          "trunc", "clamp",   "clamp_min", "clamp_max", "hardtanh", "hardsigmoid"},
      kNonDecreasing);
  add(t, {"special_log_ndtr", "special_i1"}, kNonDecreasing);
  add(t, {"erfc", "special_erfcx"}, kNonIncreasing);
  add(t, {"logaddexp", "logaddexp2", "clamp_min.Tensor", "clamp_max.Tensor"}, kNonDecreasingInEach);
  add(t, {"log", "log2", "log10", "log1p", "sqrt", "acosh"}, kNonDecreasingFrom);
  add(t,
      {"threshold_backward", "hardtanh_backward", "leaky_relu_backward", "sigmoid_backward", "tanh_backward",
       "gelu_backward", "silu_backward", "mish_backward", "softplus_backward", "hardswish_backward",
       "hardsigmoid_backward", "elu_backward", "logit_backward", "native_dropout_backward", "hardshrink_backward",
       "softshrink_backward"},
      kLinearInFirst);

  // No algebra: every dim may be sharded, nothing pending passes. (fmax, fmin and sign hide a NaN that a pending max or
  // min would show; asin and atanh are NaN on both sides.)
  add(t,
      {"abs",
       "angle",
       "cos",
       "sin",
       "tan",
       "sinc",
       "cosh",
       "acos",
       "digamma",
       "lgamma",
       "erfinv",
       "frac",
       "gelu",
       "silu",
       "mish",
       "hardswish",
       "reciprocal",
       "rsqrt",
       "sgn",
       "signbit",
       "logit",
       "i0",
       "isnan",
       "isinf",
       "isposinf",
       "isneginf",
       "logical_not",
       "bitwise_not",
       "polygamma",
       "special_entr",
       "special_ndtri",
       "special_i0e",
       "special_i1e",
       "asin",
       "atanh",
       "sign",
       "hardshrink",
       "softshrink",
       "isin.Tensor_Scalar",
       "softplus",
       "leaky_relu",
       "elu",
       "celu",
       "nan_to_num",
       "threshold"},  // decreasing for some parameters
      {});
  add(t,
      {"fmax",
       "fmin",
       "pow.Tensor_Tensor",
       "pow.Tensor_Scalar",
       "pow.Scalar",
       "atan2",
       "hypot",
       "fmod.Scalar",
       "remainder.Scalar",
       "remainder.Scalar_Tensor",
       "floor_divide.Scalar",
       "div.Scalar_mode",
       "copysign.Tensor",
       "copysign.Scalar",
       "nextafter",
       "xlogy.Tensor",
       "xlogy.Scalar_Other",
       "xlogy.Scalar_Self",
       "special_xlog1py",
       "heaviside",
       "gcd",
       "lcm",
       "clamp.Tensor",
       "igamma",
       "igammac",
       "logical_and",
       "logical_or",
       "logical_xor",
       "bitwise_and.Tensor",
       "bitwise_and.Scalar",
       "bitwise_or.Tensor",
       "bitwise_or.Scalar",
       "bitwise_xor.Tensor",
       "bitwise_xor.Scalar",
       "bitwise_left_shift.Tensor",
       "bitwise_left_shift.Tensor_Scalar",
       "bitwise_right_shift.Tensor",
       "bitwise_right_shift.Tensor_Scalar",
       "_prelu_kernel"},
      {});
  t.add({"aten::floor_divide", "aten::remainder.Tensor", "aten::fmod.Tensor", "aten::div.Tensor_mode"},
        pointwise().refusing_where(divisor));
  for (std::string op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    for (auto overload : {".Tensor", ".Scalar"}) t.add("aten::" + op + overload, pointwise());
  }
  t.hands_on(
      {"aten::square", "aten::relu6", "aten::selu", "aten::multiply", "aten::divide", "aten::subtract", "aten::where"});
}

}  // namespace intarsia
