#include "intarsia/rules/builders.h"

#include <algorithm>
#include <set>

#include <ATen/ExpandUtils.h>
#include <c10/util/Exception.h>

namespace intarsia {

const std::vector<ReduceOp> kReduceOps = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                                          ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

namespace {

// The dim of `form` that meets output dim `dim` when shapes are aligned at their ends, or -1 if `form` broadcasts
// there.
int64_t aligned_dim(const TensorForm& form, const TensorForm& out, int64_t dim) {
  auto own = dim - (out.dim() - form.dim());
  return form.defined && own >= 0 && form.sizes[own] == out.sizes[dim] ? own : -1;
}

struct Equation {
  std::vector<std::string> in;
  std::string out;
  bool batch = false;  // "..." in front
};

Equation parse(const std::string& text) {
  Equation equation;
  std::string word;
  auto flush = [&] {
    if (word.rfind("...", 0) == 0) equation.batch = true, word = word.substr(3);
    equation.in.push_back(std::exchange(word, ""));
  };
  auto arrow = text.find("->");
  for (auto c : text.substr(0, arrow)) {
    if (c == ',')
      flush();
    else
      word += c;
  }
  flush();
  equation.out = text.substr(arrow + 2);
  if (equation.out.rfind("...", 0) == 0) equation.out = equation.out.substr(3);
  return equation;
}

Placement cut_at(const std::string& letters, char letter, int64_t ndim) {
  auto at = letters.find(letter);
  if (at == std::string::npos) return R;
  return S(ndim - static_cast<int64_t>(letters.size()) + static_cast<int64_t>(at));
}

}  // namespace

bool sums_survive(c10::ScalarType from, c10::ScalarType to) {
  return from == to || (!c10::isIntegralType(from, true) && c10::promoteTypes(from, to) == to);
}

bool order_survives(c10::ScalarType from, c10::ScalarType to) {
  if (c10::isComplexType(from) || c10::isComplexType(to)) return false;
  return from == to || c10::isFloatingType(to) || c10::promoteTypes(from, to) == to;
}

bool survives_casts(const Row& row, const OpCall& call) {
  auto to = call.outputs[0].dtype;
  for (size_t i = 0; i < row.in.size(); ++i) {
    auto op = pending_op(row.in[i]);
    if (!op || !call.inputs[i].defined) continue;
    auto from = call.inputs[i].dtype;
    bool order = op == ReduceOp::max || op == ReduceOp::min;
    if (order ? !order_survives(from, to) : !sums_survive(from, to)) return false;
  }
  return true;
}

std::vector<int64_t> broadcast_shape(const OpCall& call) {
  std::vector<int64_t> shape;
  for (auto& form : call.inputs) {
    if (form.defined) shape = at::infer_size(shape, form.sizes);
  }
  return shape;
}

Rule rows(std::string family, std::function<Rows(const OpCall&)> make) {
  Rule rule;
  rule.family = std::move(family);
  rule.rows = std::move(make);
  return rule;
}

Rows independent_of(const OpCall& call, const std::vector<int64_t>& dims) {
  Rows rows;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) continue;
    rows.push_back({Placements(call.inputs.size(), S(d)), Placements(call.outputs.size(), S(d))});
  }
  return rows;
}

Rows linear_in_first(size_t inputs, size_t outputs) {
  Rows rows;
  for (auto& pending : {P_sum, P_avg}) {
    Row row{Placements(inputs, R), Placements(outputs, pending)};
    row.in[0] = pending;
    rows.push_back(std::move(row));
  }
  return rows;
}

void add_for_any_reduction(Rows& rows, const Row& row) {
  for (auto op : kReduceOps) {
    auto& made = rows.emplace_back(row);
    std::replace(made.in.begin(), made.in.end(), P_sum, P(op));
    std::replace(made.out.begin(), made.out.end(), P_sum, P(op));
    made.any_reduction = true;
  }
}

Rule on_whole_tensors() {
  Rule rule = rows("whole", [](const OpCall&) { return Rows(); });
  rule.asks_for_all = true;
  return rule;
}

Rule einsum(const std::string& text) {
  auto equation = parse(text);
  Rule rule = rows("einsum " + text, [equation](const OpCall& call) {
    Rows rows;
    std::set<char> letters(equation.out.begin(), equation.out.end());
    for (auto& word : equation.in) letters.insert(word.begin(), word.end());
    auto out_ndim = call.outputs[0].dim();
    for (auto letter : letters) {
      Row row;
      for (size_t i = 0; i < equation.in.size(); ++i) {
        row.in.push_back(cut_at(equation.in[i], letter, call.inputs[i].dim()));
      }
      bool kept = equation.out.find(letter) != std::string::npos;
      row.out = {kept ? cut_at(equation.out, letter, out_ndim) : P_sum};
      rows.push_back(std::move(row));
    }
    auto batch_dims = equation.batch ? out_ndim - static_cast<int64_t>(equation.out.size()) : 0;
    for (int64_t d = 0; d < batch_dims; ++d) {
      Row row{{}, {S(d)}};
      for (size_t i = 0; i < equation.in.size(); ++i) {
        auto& form = call.inputs[i];
        auto own = d - batch_dims + form.dim() - static_cast<int64_t>(equation.in[i].size());
        row.in.push_back(own >= 0 && form.sizes[own] == call.outputs[0].sizes[d] ? S(own) : R);
      }
      rows.push_back(std::move(row));
    }
    for (auto& pending : {P_sum, P_avg}) {  // linear in each operand
      for (size_t i = 0; i < equation.in.size(); ++i) {
        Row row{Placements(equation.in.size(), R), {pending}};
        row.in[i] = pending;
        rows.push_back(std::move(row));
      }
    }
    return rows;
  });
  if (equation.out.empty()) {
    rule.form.shapes = [](const OpCall& call) {  // if two vectors do not match, the plain op's own check fails
      return std::vector<std::vector<int64_t>>(call.inputs[0].sizes == call.inputs[1].sizes ? 1 : 0);
    };
  }
  rule.aligned = true;
  return rule;
}

Rule pointwise(Rows pending) {
  Rule rule = rows("pointwise", [pending](const OpCall& call) {
    Rows rows;
    auto& out = call.outputs[0];
    // Integers wrap: 1 - 2 is 255 for bytes, and the negative of the lowest number, the max of an empty shard, is
    // itself.
    bool wraps = c10::isIntegralType(out.dtype, true);
    for (int64_t d = 0; d < out.dim(); ++d) {
      Row row;
      bool cut = false;
      for (auto& form : call.inputs) {
        auto own = aligned_dim(form, out, d);
        row.in.push_back(own >= 0 ? S(own) : R);
        cut = cut || own >= 0;
      }
      if (!cut) continue;
      row.out.assign(call.outputs.size(), S(d));
      rows.push_back(std::move(row));
    }
    for (auto row : pending) {
      if (row.in.size() != call.inputs.size() || !survives_casts(row, call)) continue;
      if (wraps && (row.out[0] == P_max || row.out[0] == P_min)) continue;
      row.out.assign(call.outputs.size(), row.out[0]);
      rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.form.shapes = [](const OpCall& call) {
    return std::vector<std::vector<int64_t>>(call.schema.returns().size(), broadcast_shape(call));
  };
  rule.form.from_ones = true;
  rule.aligned = true;
  return rule;
}

Rule reduce(ReduceOp result, std::vector<ReduceOp> pending, const char* dims) {
  Rule rule = rows("reduce " + str(result), [result, pending, dims](const OpCall& call) {
    auto ndim = call.inputs[0].dim();
    auto reduced = call.dims_arg(dims, ndim);
    bool keep = call.bool_arg("keepdim", false);
    Rows rows;
    int64_t kept_before = 0;
    for (int64_t d = 0; d < ndim; ++d) {
      bool gone = std::find(reduced.begin(), reduced.end(), d) != reduced.end();
      Placement out = gone ? P(result) : S(keep ? d : kept_before);
      if (!gone) ++kept_before;
      rows.push_back({{S(d)}, Placements(call.outputs.size(), out)});
    }
    for (auto op : pending) {
      Row row{{P(op)}, Placements(call.outputs.size(), P(op))};
      if (survives_casts(row, call)) rows.push_back(std::move(row));
    }
    return rows;
  });
  rule.form.shapes = [dims](const OpCall& call) {
    auto& sizes = call.inputs[0].sizes;
    auto reduced = call.dims_arg(dims, sizes.size());
    std::vector<int64_t> shape;
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      bool gone = std::find(reduced.begin(), reduced.end(), d) != reduced.end();
      if (!gone)
        shape.push_back(sizes[d]);
      else if (call.bool_arg("keepdim", false))
        shape.push_back(1);
    }
    return std::vector<std::vector<int64_t>>(call.schema.returns().size(), shape);
  };
  rule.aligned = true;
  return rule;
}

}  // namespace intarsia
