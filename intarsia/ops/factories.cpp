// New tensors, copies, casts and fills.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// What the values of a new tensor are.
enum class Values { given, none };

// A pending reduction lends its shape, its values are not read. The result is whole for free; where it has no values
// yet, it may as well be pending.
void add_pending_rows(Rows& rows, Values values) {
  add_for_any_reduction(rows, {{P_sum}, {R}});
  if (values == Values::given) return;
  Row pending{{P_sum}, {P_sum}};
  pending.if_advised = true;
  add_for_any_reduction(rows, pending);
}

// The input lends its shape and layout.
Rule like(Values values) {
  auto shape = pointwise();
  Rule rule = rows("like", [shape, values](const OpCall& call) {
    auto rows = shape.rows(call);
    add_pending_rows(rows, values);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// new_zeros and the like: a cut stays on a dim that keeps its place and extent, else the result is whole.
Rule fresh(Values values) {
  auto same_shape = like(values);
  Rule rule = rows("new", [same_shape](const OpCall& call) {
    if (call.inputs[0].sizes == call.outputs[0].sizes) return same_shape.rows(call);
    Rows rows;
    auto &in = call.inputs[0], &out = call.outputs[0];
    for (int64_t d = 0; d < in.dim(); ++d) {
      bool kept = in.dim() == out.dim() && in.sizes[d] == out.sizes[d];
      rows.push_back({{S(d)}, {kept ? S(d) : R}});
    }
    add_pending_rows(rows, Values::given);
    return rows;
  });
  rule.aligned = true;
  return std::move(rule).with_size_args({"size"});
}

// Autograd allocates gradients with it. The shards keep the order of the strides, if no two elements share memory.
Rule fresh_strided() {
  return rows("new",
              [](const OpCall& call) {
                Rows rows;
                auto &in = call.inputs[0], &out = call.outputs[0];
                bool kept = in.sizes == out.sizes && at::IntArrayRef(at::infer_dense_strides(out.sizes, out.strides)) ==
                                                         at::IntArrayRef(out.strides);
                for (int64_t d = 0; d < in.dim(); ++d) rows.push_back({{S(d)}, {kept ? S(d) : R}});
                add_pending_rows(rows, kept ? Values::none : Values::given);
                return rows;
              })
      .with_local([](LocalCall& local) {
        auto shape = local_shape(*local.out[0], local.call.outputs[0].sizes, local.slot.coordinate);
        if (at::IntArrayRef(shape) != at::IntArrayRef(local.call.outputs[0].sizes)) {
          local.stack[1] = std::vector<int64_t>(shape.begin(), shape.end());
          local.stack[2] = c10::IValue(at::IntArrayRef(at::infer_dense_strides(shape, local.call.outputs[0].strides)));
        }
        local.call_plain();
      });
}

bool is_whole_number(c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/false); }

// Averages of whole numbers have fractions, so they are taken of what the terms are cast to. Whole numbers that become
// narrower wrap in sums and products as they do in the cast.
bool survives_this_cast(ReduceOp op, c10::ScalarType from, c10::ScalarType to) {
  bool has_fractions = c10::isFloatingType(to) || c10::isComplexType(to);
  if (op == ReduceOp::avg && c10::isIntegralType(from, /*includeBool=*/true)) return has_fractions;
  bool narrower = is_whole_number(from) && is_whole_number(to) && c10::elementSize(to) <= c10::elementSize(from);
  return narrower && (op == ReduceOp::sum || op == ReduceOp::product);
}

// Up to rounding, and to sums that do not fit into 32 bits.
bool survives_but_for_rounding(ReduceOp op, c10::ScalarType from, c10::ScalarType to) {
  if (op != ReduceOp::sum && op != ReduceOp::avg && op != ReduceOp::product) return false;
  if (is_whole_number(from)) {
    bool is_kept = !c10::isIntegralType(to, true) || (is_whole_number(to) && c10::elementSize(to) >= 4);
    return is_kept && c10::elementSize(from) >= 4 && op != ReduceOp::avg;
  }
  if (c10::isIntegralType(from, true) || c10::isIntegralType(to, true)) return false;
  return op != ReduceOp::product || !c10::isComplexType(from) || c10::isComplexType(to);
}

// Whether what is pending is that of the terms, cast to another dtype, however they are rounded.
bool survives_cast(ReduceOp op, const TensorForm& from, const TensorForm& to) {
  if (survives_this_cast(op, from.dtype, to.dtype)) return true;
  if (op == ReduceOp::max || op == ReduceOp::min) return order_survives(from.dtype, to.dtype);
  return (op == ReduceOp::sum || op == ReduceOp::avg) && sums_survive(from.dtype, to.dtype);
}

// A cast keeps what is pending if it loses nothing of it. Where it is only rounded otherwise, a guide decides.
Rule cast() {
  auto shape = pointwise();
  Rule rule = rows("cast", [shape](const OpCall& call) {
    auto rows = shape.rows(call);
    auto &from = call.inputs[0], &to = call.outputs[0];
    if (from.dtype == to.dtype) {
      add_for_any_reduction(rows, {{P_sum}, {P_sum}});
      return rows;
    }
    for (auto op : kReduceOps) {
      bool survives = survives_cast(op, from, to);
      if (survives || survives_but_for_rounding(op, from.dtype, to.dtype))
        rows.push_back({{P(op)}, {P(op)}, /*if_advised=*/!survives});
    }
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// An elementwise op with further rows, which `add` appends.
Rule pointwise_and(std::function<void(const OpCall&, Rows&)> add) {
  Rule rule = pointwise();
  rule.rows = [shape = rule.rows, add = std::move(add)](const OpCall& call) {
    auto rows = shape(call);
    add(call, rows);
    return rows;
  };
  return rule;
}

// self.copy_(src) overwrites self: what is pending in self must be pending in src alike.
Rule copy() {
  return pointwise_and([](const OpCall& call, Rows& rows) {
    auto &from = call.inputs[1], &to = call.outputs[0];
    if (from.dtype == to.dtype) return add_for_any_reduction(rows, {{P_sum, P_sum}, {P_sum}});
    for (auto op : kReduceOps) {
      if (survives_cast(op, from, to)) rows.push_back({{P(op), P(op)}, {P(op)}});
    }
  });
}

// Zeros in place of every term reduce to zero, whatever the reduction.
Rule zero() {
  return pointwise_and([](const OpCall&, Rows& rows) { add_for_any_reduction(rows, {{P_sum}, {P_sum}}); });
}

// A number in place of every term: only where reducing equal values changes nothing.
Rule fill(std::vector<ReduceOp> pending) {
  return pointwise_and([pending = std::move(pending)](const OpCall& call, Rows& rows) {
    for (auto op : pending) {
      Row row{Placements(call.inputs.size(), R), {P(op)}};
      row.in[0] = P(op);
      rows.push_back(std::move(row));
    }
  });
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

// LibTorch's kernel returns the tensor itself, although its schema does not say so: this one returns a registered
// alias.
at::Tensor lift(const at::Tensor& self) { return at::alias(self); }

using MaybeGenerator = std::optional<at::Generator>;

double number_of(const OpCall& call, const char* name, double otherwise) {
  auto index = call.arg_index(name);
  return index < 0 || call.args[index].isNone() ? otherwise : call.args[index].toScalar().toDouble();
}

void draw_uniform(at::Tensor& tensor, const OpCall&, const MaybeGenerator& generator) {
  tensor.uniform_(0, 1, generator);
}

// randn has no mean, normal has one.
void draw_normal(at::Tensor& tensor, const OpCall& call, const MaybeGenerator& generator) {
  tensor.normal_(number_of(call, "mean", 0), number_of(call, "std", 1), generator);
}

void draw_whole(at::Tensor& tensor, const OpCall& call, const MaybeGenerator& generator) {
  tensor.random_(call.int_arg("low", 0), call.int_arg("high", 0), generator);
}

// How FactoryScope creates tensors, and what stays plain there.
void add_scoped_factories(RuleTable& t) {
  t.traits({"aten::empty", "aten::zeros", "aten::ones", "aten::full"},
           [](Traits& traits) { traits.factory = Factory(); });
  t.traits("aten::rand").factory = Factory{draw_uniform};
  t.traits({"aten::randn", "aten::normal"}, [](Traits& traits) { traits.factory = Factory{draw_normal}; });
  t.traits("aten::randint").factory = Factory{draw_whole, at::kLong};
  t.traits({"aten::scalar_tensor", "aten::from_file", "aten::_efficientzerotensor"},
           [](Traits& traits) { traits.makes_plain = true; });
}

}  // namespace

void add_factories(RuleTable& t) {
  add_scoped_factories(t);
  t.add({"aten::zeros_like", "aten::ones_like", "aten::full_like"}, like(Values::given));
  t.add({"aten::new_zeros", "aten::new_ones", "aten::new_full"}, fresh(Values::given));
  t.add("aten::empty_like", like(Values::none));
  t.add("aten::new_empty", fresh(Values::none));
  t.add("aten::new_empty_strided", fresh_strided());
  t.add({"aten::clone", "aten::_to_copy", "aten::lift", "aten::lift_fresh_copy"}, cast());
  t.gradient("aten::lift", lift);
  t.add("aten::view.dtype", view_as_dtype());

  t.add("aten::copy", copy());
  t.add("aten::zero", zero());
  t.add("aten::fill.Scalar", fill({ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::band, ReduceOp::bor}));
  t.add("aten::fill.Tensor", fill({ReduceOp::avg, ReduceOp::min, ReduceOp::max}));
}

}  // namespace intarsia
