// New tensors, copies, casts and fills.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/rules/builders.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// The input only gives shape and layout, its values are not read: a pending reduction becomes a whole tensor for free.
Rule like() {
  auto shape = pointwise();
  Rule rule = rows("like", [shape](const OpCall& call) {
    auto rows = shape.rows(call);
    for (auto op : kReduceOps) rows.push_back({{P(op)}, {R}});
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// new_zeros and the like: a dim that keeps its position and extent stays sharded, else the result is replicated.
Rule fresh() {
  auto same_shape = like();
  Rule rule = rows("new", [same_shape](const OpCall& call) {
    if (call.inputs[0].sizes == call.outputs[0].sizes) return same_shape.rows(call);
    Rows rows;
    auto &in = call.inputs[0], &out = call.outputs[0];
    for (int64_t d = 0; d < in.dim(); ++d) {
      bool kept = in.dim() == out.dim() && in.sizes[d] == out.sizes[d];
      rows.push_back({{S(d)}, {kept ? S(d) : R}});
    }
    for (auto op : kReduceOps) rows.push_back({{P(op)}, {R}});
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
                for (auto op : kReduceOps) rows.push_back({{P(op)}, {R}});
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

Rows pass_through(std::initializer_list<ReduceOp> ops) {
  Rows rows;
  for (auto op : ops) rows.push_back({{P(op)}, {P(op)}});
  return rows;
}

// A cast keeps what is pending if that survives it: see sums_survive and order_survives.
Rule cast() {
  auto shape = pointwise();
  Rule rule = rows("cast", [shape](const OpCall& call) {
    auto rows = shape.rows(call);
    bool same = call.inputs[0].dtype == call.outputs[0].dtype;
    for (auto op : same ? kReduceOps : std::vector{ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
      Row row{{P(op)}, {P(op)}};
      if (survives_casts(row, call)) rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.aligned = true;
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
  t.add({"aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like"}, like());
  t.add({"aten::new_zeros", "aten::new_ones", "aten::new_empty", "aten::new_full"}, fresh());
  t.add("aten::new_empty_strided", fresh_strided());
  t.add({"aten::clone", "aten::_to_copy", "aten::lift", "aten::lift_fresh_copy"}, cast());
  t.gradient("aten::lift", lift);
  t.add("aten::view.dtype", view_as_dtype());

  // self.copy_(src) overwrites self: what is pending in self must be pending in src as well.
  t.add("aten::copy", pointwise({{{P_sum, P_sum}, {P_sum}},
                                 {{P_avg, P_avg}, {P_avg}},
                                 {{P_max, P_max}, {P_max}},
                                 {{P_min, P_min}, {P_min}}}));
  // Zero stays zero under every reduction; another constant only where reducing equal values changes nothing.
  t.add("aten::zero", pointwise(pass_through({ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min,
                                              ReduceOp::max, ReduceOp::band, ReduceOp::bor, ReduceOp::bxor})));
  t.add("aten::fill.Scalar",
        pointwise(pass_through({ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::band, ReduceOp::bor})));
  t.add("aten::fill.Tensor", pointwise({{{P_avg, R}, {P_avg}}, {{P_max, R}, {P_max}}, {{P_min, R}, {P_min}}}));
}

}  // namespace intarsia
