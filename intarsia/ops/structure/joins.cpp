// cat and stack. Along a sharded dim the result of cat stays sharded, and only elements that must move are sent.

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/native/TypeProperties.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/reductions/total_norms.h"
#include "intarsia/ops/structure/lined_up.h"
#include "intarsia/ops/structure/parts.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

bool have_one_dtype(const OpCall& call) {
  return std::all_of(call.inputs.begin(), call.inputs.end(),
                     [&](auto& form) { return form.dtype == call.outputs[0].dtype; });
}

// Every dim but the joined one. cat accepts empty vectors beside tensors of any shape: those stay replicated.
Rule cat_rule() {
  Rule rule = rows("join", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.outputs[0].dim();
    auto joined = call.dim_arg("dim", ndim);
    auto placed = [&](const Placement& p) {
      Row row{{}, {p}};
      for (auto& form : call.inputs) row.in.push_back(form.dim() == 1 && form.sizes[0] == 0 && ndim != 1 ? R : p);
      return row;
    };
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != joined) rows.push_back(placed(S(d)));
    }
    if (have_one_dtype(call)) add_for_any_reduction(rows, placed(P_sum));
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule stack_rule() {
  Rule rule = rows("join", [](const OpCall& call) {
    Rows rows;
    auto ndim = call.outputs[0].dim();
    auto fresh = call.dim_arg("dim", ndim);
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != fresh) rows.push_back({Placements(call.inputs.size(), S(d < fresh ? d : d - 1)), {S(d)}});
    }
    if (have_one_dtype(call)) pass_pending(call, rows);
    return rows;
  });
  rule.aligned = true;
  return rule;
}

// cat ignores a one-dim tensor without elements, whatever the dims of the others.
bool is_nothing(const TensorForm& form) { return form.dim() == 1 && form.sizes[0] == 0; }

// Joins the others alone, in the dtype of all.
void cat_some(Stack& stack) {
  auto tensors = stack[0].toTensorVector();
  std::vector<at::Tensor> some;
  std::remove_copy_if(tensors.begin(), tensors.end(), std::back_inserter(some),
                      [](auto& tensor) { return is_nothing(form_of(tensor)); });
  auto dtype = at::native::result_type(at::TensorList(tensors));
  stack = {at::cat(some, stack[1].toInt()).to(dtype)};
}

Lowering cat_along(const CutCall& c) {
  auto& forms = c.call.inputs;
  if (auto numbers = join_numbers(c, 1)) return numbers;
  auto first = std::find_if_not(forms.begin(), forms.end(), is_nothing);
  bool all_something = std::none_of(forms.begin(), forms.end(), is_nothing);
  if (!all_something && first != forms.end() && c.is_distributed(first - forms.begin())) return cat_some;
  if (forms.empty() || forms[0].dim() == 0) return {};
  auto dim = c.call.dim_arg("dim", forms[0].dim());
  auto* layout = joining_layout(c, dim);
  if (!layout) return {};
  std::vector<int64_t> extents;
  std::vector<Source> sources;
  for (size_t t = 0; t < forms.size(); ++t) {
    extents.push_back(forms[t].sizes[dim]);
    for (int64_t p = 0; p < extents.back(); ++p) sources.push_back({static_cast<int64_t>(t), p});
  }
  auto plan = plan_recut(*layout, forms[0].sizes, dim, extents, sources);
  return [=](Stack& stack) { stack = {recut(plan, lined_up(stack[0].toTensorVector(), layout))}; };
}

}  // namespace

void add_joins(RuleTable& t) {
  t.add("aten::cat", cat_rule());
  t.lower("aten::cat", cat_along);
  t.add({"aten::stack", "aten::_stack"}, stack_rule());
}

}  // namespace intarsia
