#include <ATen/ATen.h>

#include "tests/rules/harness.h"

namespace intarsia {

void add_pointwise_samples(std::vector<Sample>& list) {
  const c10::IValue none;
  using Args = std::vector<c10::IValue>;
  auto each = [&](std::initializer_list<const char*> ops, const Args& args) {
    for (std::string op : ops) list.push_back({"aten::" + op, args});
  };

  // f(x)
  each({"neg",           "relu",        "sigmoid",     "tanh",       "exp",         "exp2",        "expm1",
        "erf",           "atan",        "asinh",       "sinh",       "ceil",        "floor",       "round",
        "trunc",         "sign",        "hardsigmoid", "deg2rad",    "rad2deg",     "abs",         "angle",
        "cos",           "sin",         "tan",         "sinc",       "cosh",        "erfc",        "frac",
        "silu",          "mish",        "hardswish",   "reciprocal", "sgn",         "signbit",     "i0",
        "isnan",         "isinf",       "isposinf",    "isneginf",   "logical_not", "bitwise_not", "special_log_ndtr",
        "special_erfcx", "special_i0e", "special_i1",  "special_i1e"},
       {x({5, 3})});
  each({"log", "log2", "log10", "log1p", "sqrt", "acosh", "digamma", "lgamma", "rsqrt", "special_entr"}, {pos({5, 3})});
  each({"asin", "atanh", "acos", "erfinv"}, {unit({5, 3})});
  each({"special_ndtri"}, {unit({5, 3}).abs()});

  // f(x, numbers)
  each({"add.Scalar", "sub.Scalar", "rsub.Scalar"}, {x({5, 3}), -1.5, 2});
  each({"add.Scalar", "sub.Scalar", "rsub.Scalar"}, {x({5, 3}), 3, -1});
  each({"mul.Scalar", "div.Scalar", "pow.Tensor_Scalar", "fmod.Scalar", "remainder.Scalar", "floor_divide.Scalar",
        "copysign.Scalar"},
       {x({5, 3}), -2});
  each({"mul.Scalar", "div.Scalar", "eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar",
        "xlogy.Scalar_Other"},
       {x({5, 3}), 1.5});
  each({"bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar", "bitwise_left_shift.Tensor_Scalar",
        "bitwise_right_shift.Tensor_Scalar"},
       {below(9, {5, 3}), 2});
  each({"pow.Scalar", "remainder.Scalar_Tensor", "xlogy.Scalar_Self"}, {1.5, pos({5, 3})});
  each({"round.decimals"}, {x({5, 3}), 1});
  each({"clamp"}, {x({5, 3}), -0.5, none});
  each({"clamp"}, {x({5, 3}), -0.5, 0.75});
  each({"clamp_min", "clamp_max", "hardshrink", "softshrink"}, {x({5, 3}), 0.25});
  each({"hardtanh"}, {x({5, 3}), -0.5, 0.5});
  each({"gelu"}, {x({5, 3}), "none"});
  each({"logit"}, {unit({5, 3}).abs(), none});
  each({"logit"}, {unit({5, 3}).abs(), 0.1});
  each({"polygamma"}, {1, pos({5, 3})});
  each({"isin.Tensor_Scalar"}, {x({5, 3}), 0.375, false, false});
  each({"softplus"}, {x({5, 3}), 2.0, 3.0});
  each({"leaky_relu", "celu"}, {x({5, 3}), 0.25});
  each({"elu"}, {x({5, 3}), 1.0, 2.0, 0.5});
  each({"nan_to_num"}, {x({5, 3}), none, none, none});
  each({"threshold"}, {x({5, 3}), 0.25, 4.0});
  each({"div.Scalar_mode"}, {x({5, 3}), 2, "floor"});

  // f(x, y), also where one broadcasts
  for (const Args& two : {Args{x({5, 3}), pos({5, 3})}, Args{x({5, 3}), pos({3})}, Args{pos({3, 1}), pos({1, 5})}}) {
    each({"mul.Tensor",
          "div.Tensor",
          "maximum",
          "fmax",
          "minimum",
          "fmin",
          "pow.Tensor_Tensor",
          "atan2",
          "hypot",
          "fmod.Tensor",
          "remainder.Tensor",
          "floor_divide",
          "logaddexp",
          "logaddexp2",
          "copysign.Tensor",
          "nextafter",
          "ldexp.Tensor",
          "xlogy.Tensor",
          "special_xlog1py",
          "heaviside",
          "clamp_min.Tensor",
          "clamp_max.Tensor",
          "logical_and",
          "logical_or",
          "logical_xor",
          "bitwise_and.Tensor",
          "bitwise_or.Tensor",
          "bitwise_xor.Tensor",
          "eq.Tensor",
          "ne.Tensor",
          "lt.Tensor",
          "le.Tensor",
          "gt.Tensor",
          "ge.Tensor",
          "complex",
          "polar"},
         two);
    each({"add.Tensor", "sub.Tensor", "rsub.Tensor"}, {two[0], two[1], 1});
    each({"add.Tensor", "sub.Tensor", "rsub.Tensor"}, {two[0], two[1], -2});
    each({"lerp.Scalar"}, {two[0], two[1], 0.25});
    each({"lerp.Tensor"}, {two[0], two[1], pos({3, 1, 1})});
    each({"addcmul", "addcdiv"}, {two[0], two[1], pos({3, 1, 1}), -0.5});
    each({"where.self"}, {below(2, {3, 1, 1}) == 0, two[0], two[1]});
    each({"div.Tensor_mode"}, {two[0], two[1], "trunc"});
    each({"clamp.Tensor"}, {two[0], none, two[1]});
  }
  each({"gcd", "lcm", "bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor"}, {below(9, {5, 3}), below(6, {5, 3})});
  each({"mul.Tensor", "maximum"}, {x({5, 3}), below(6, {5, 3})});
  each({"add.Tensor", "sub.Tensor"}, {below(9, {5, 3}), x({5, 3}), 1});
  each({"igamma", "igammac"}, {pos({5, 3}), pos({5, 3})});
  each({"masked_fill.Scalar"}, {x({5, 3}), below(2, {3}) == 0, 4});
  each({"masked_fill.Tensor"}, {x({5, 3}), below(2, {5, 1}) == 0, pos({})});
  each({"_prelu_kernel"}, {x({5, 3}), unit({1, 3})});

  // f(grad, x)
  each({"sigmoid_backward", "tanh_backward", "silu_backward", "mish_backward", "hardswish_backward",
        "hardsigmoid_backward"},
       {x({5, 3}), unit({5, 3})});
  each({"threshold_backward", "hardshrink_backward", "softshrink_backward"}, {x({5, 3}), x({5, 3}), 0.25});
  each({"hardtanh_backward"}, {x({5, 3}), x({5, 3}), -0.5, 0.5});
  each({"leaky_relu_backward"}, {x({5, 3}), x({5, 3}), 0.25, false});
  each({"gelu_backward"}, {x({5, 3}), x({5, 3}), "tanh"});
  each({"softplus_backward"}, {x({5, 3}), x({5, 3}), 2.0, 3.0});
  each({"elu_backward"}, {x({5, 3}), 1.0, 2.0, 0.5, false, x({5, 3})});
  each({"logit_backward"}, {x({5, 3}), unit({5, 3}).abs(), none});
  each({"native_dropout_backward"}, {x({5, 3}), below(2, {5, 3}) == 0, 2.0});
}

}  // namespace intarsia
