// Ops that flip, roll, repeat and blank out: elements change places, and none is computed. Along a sharded dim, only
// elements that must move are sent.

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/along/replicated.h"
#include "intarsia/ops/structure/parts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// Every dim but those that are `moved`.
Rule moving(std::function<std::vector<int64_t>(const OpCall&)> moved) {
  Rule rule = rows("rearrange", [moved](const OpCall& call) {
    Rows rows;
    auto dims = moved(call);
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) rows.push_back({{S(d)}, {S(d)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

std::vector<int64_t> flipped_dims(const OpCall& call) {
  if (call.arg("dims").toIntVector().empty()) return {};
  return call.dims_arg("dims", call.inputs[0].dim());
}

// Without dims, all are read as one.
std::vector<int64_t> turned_dims(const OpCall& call) { return call.dims_arg("dims", call.inputs[0].dim()); }

std::vector<std::vector<int64_t>> rot90_shapes(const OpCall& call) {
  if (call.inputs[0].dim() < 2) return {};
  auto shape = sizes_of(call.inputs[0]);
  auto dims = turned_dims(call);
  if (call.int_arg("k", 1) % 2 != 0 && dims.size() == 2) std::swap(shape[dims[0]], shape[dims[1]]);
  return {shape};
}

// A quarter turn flips one of its two dims, and swaps them: other dims may be sharded.
Rows rot90_rows(const OpCall& call) {
  auto dims = turned_dims(call);
  auto quarters = (call.int_arg("k", 1) % 4 + 4) % 4;
  if (dims.size() != 2 || dims[0] == dims[1] || quarters % 2 == 0) return {};
  auto kept = dims[quarters == 1 ? 0 : 1], becomes = dims[quarters == 1 ? 1 : 0];
  return {{{S(kept)}, {S(becomes)}}};
}

// It flips a dim, and swaps the two dims of the result.
std::vector<int64_t> rot90_order(const OpCall& call) {
  auto& input = call.inputs[0];
  auto strides = at::infer_dense_strides(input.sizes, input.strides);
  auto dims = turned_dims(call);
  if (call.int_arg("k", 1) % 2 != 0 && dims.size() == 2) std::swap(strides[dims[0]], strides[dims[1]]);
  std::vector<int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return strides[a] > strides[b]; });
  return order;
}

Rule rot90_rule() {
  auto rule = moving(turned_dims);
  rule.rows = [others = rule.rows](const OpCall& call) {
    auto rows = others(call);
    for (auto& row : rot90_rows(call)) rows.push_back(row);
    return rows;
  };
  return std::move(rule).like_input(0).with_shapes(rot90_shapes).ordered(rot90_order);
}

// Dims that are repeated once stay sharded. New dims come first.
Rule repeat_rule() {
  Rule rule = rows("rearrange", [](const OpCall& call) {
    Rows rows;
    auto repeats = call.arg("repeats").toIntVector();
    auto added = static_cast<int64_t>(repeats.size()) - call.inputs[0].dim();
    for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
      if (repeats[d + added] == 1) rows.push_back({{S(d)}, {S(d + added)}});
    }
    pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// tril and triu keep an element by its position in the whole: for a shard that begins at row r and column c, the
// diagonal moves by r - c.
Rule triangle(bool lower) {
  return rows("triangle",
              [](const OpCall& call) {
                Rows rows;
                for (int64_t d = 0; d < call.inputs[0].dim(); ++d) rows.push_back({{S(d)}, {S(d)}});
                pass_pending(call, rows, kKeepsZero);
                return rows;
              })
      .with_local([lower](LocalCall& local) {
        auto self = local.stack[0].toTensor();
        auto offset = local_offset(*local.in[0], local.call.inputs[0].sizes, local.slot.coordinate);
        auto ndim = self.dim();
        auto diagonal = local.stack[1].toInt() + offset[ndim - 2] - offset[ndim - 1];
        local.stack = {lower ? at::tril(self, diagonal) : at::triu(self, diagonal)};
      });
}

// Runs one exchange after the other.
at::Tensor recut_by(const std::vector<RecutPlan>& plans, at::Tensor tensor) {
  for (auto& plan : plans) tensor = recut(plan, {tensor});
  return tensor;
}

Lowering flip_along(const CutCall& c) {
  auto& self = c.input(0);
  std::vector<int64_t> here;
  std::vector<RecutPlan> plans;
  for (auto given : c.call.arg("dims").toIntVector()) {
    auto dim = c10::maybe_wrap_dim(given, self.dim());
    if (self.dim() == 0 || !c.cuts(0, dim)) {
      here.push_back(dim);
      continue;
    }
    std::vector<Source> sources;
    for (auto p = self.sizes[dim]; p-- > 0;) sources.push_back({0, p});
    plans.push_back(plan_recut(*c.now[0], self.sizes, dim, sources));
  }
  if (plans.empty()) return {};
  return [=](Stack& stack) {
    auto self = stack[0].toTensor();
    auto flipped = recut_by(plans, self);
    if (!here.empty()) flipped = at::flip(flipped, here);
    stack = {in_order(flipped, at::infer_dense_strides(self.sizes(), self.strides()))};
  };
}

Lowering roll_along(const CutCall& c) {
  auto& self = c.input(0);
  auto shifts = c.call.arg("shifts").toIntVector(), dims = c.call.arg("dims").toIntVector();
  if (dims.empty() || shifts.size() != dims.size() || self.numel() == 0) return {};
  std::vector<int64_t> here_shifts, here_dims;
  std::vector<RecutPlan> plans;
  for (size_t i = 0; i < dims.size(); ++i) {
    auto dim = c10::maybe_wrap_dim(dims[i], self.dim());
    if (!c.cuts(0, dim)) {
      here_dims.push_back(dim);
      here_shifts.push_back(shifts[i]);
      continue;
    }
    auto size = self.sizes[dim];
    std::vector<Source> sources;
    for (int64_t p = 0; p < size; ++p) sources.push_back({0, ((p - shifts[i]) % size + size) % size});
    plans.push_back(plan_recut(*c.now[0], self.sizes, dim, sources));
  }
  if (plans.empty()) return {};
  return [=](Stack& stack) {
    auto rolled = recut_by(plans, stack[0].toTensor());
    stack = {here_dims.empty() ? rolled : at::roll(rolled, here_shifts, here_dims)};
  };
}

Lowering repeat_along(const CutCall& c) {
  auto sizes = sizes_of(c.input(0));
  auto repeats = c.call.arg("repeats").toIntVector();
  auto added = static_cast<int64_t>(repeats.size()) - c.input(0).dim();
  if (added < 0) return {};
  std::vector<RecutPlan> plans;
  for (int64_t d = 0; d < c.input(0).dim(); ++d) {
    auto& times = repeats[d + added];
    if (times < 0) return {};
    if (times == 1 || !c.cuts(0, d)) continue;
    std::vector<Source> sources;
    for (int64_t p = 0; p < sizes[d] * times; ++p) sources.push_back({0, p % sizes[d]});
    plans.push_back(plan_recut(*c.now[0], sizes, d, sources));
    sizes[d] *= times;
    times = 1;
  }
  if (plans.empty()) return {};
  return [=](Stack& stack) { stack = {recut_by(plans, stack[0].toTensor()).repeat(repeats)}; };
}

// Looks up the positions that LibTorch finds with masks.
at::Tensor combinations(const at::Tensor& self, int64_t r, bool with_replacement) {
  TORCH_CHECK(self.dim() == 1, "Expect a 1D vector, but got shape ", self.sizes());
  auto places = at::combinations(at::arange(self.size(0)), r, with_replacement);
  return at::index_select(self, 0, replicated_like(places.flatten(), self)).view(places.sizes());
}

}  // namespace

void add_rearrangements(RuleTable& t) {
  t.add("aten::flip", moving(flipped_dims).like_input(0));
  t.lower("aten::flip", flip_along);
  t.add("aten::roll", moving(turned_dims).like_input(0).contiguous());
  t.lower("aten::roll", roll_along);
  t.add("aten::rot90", rot90_rule());
  t.add("aten::repeat", repeat_rule());
  t.lower("aten::repeat", repeat_along);
  t.add("aten::channel_shuffle",
        moving([](const OpCall&) { return std::vector<int64_t>{1}; }).like_input(0).contiguous());
  t.add("aten::tril", triangle(true));
  t.add("aten::triu", triangle(false));
  t.composite("aten::combinations", combinations);
}

}  // namespace intarsia
