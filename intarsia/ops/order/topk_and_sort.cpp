// Sorting, top k, the middle, what occurs most often. Along a sharded dim, every rank finds the top k of its own part,
// and only candidates are sent.

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/order/cut_line.h"
#include "intarsia/ops/order/dim_rules.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The k best of all are among the k best of each rank.
struct Candidates {
  CutLinePtr line;
  int64_t k;
  bool largest, sorted;

  void operator()(Stack& stack) const {
    auto self = stack[0].toTensor();
    auto dim = line->dim;
    Shards values, indices;
    auto& shards = body_of(self).shards();
    for (size_t slot = 0; slot < shards.size(); ++slot) {
      auto [value, index] = at::topk(shards[slot], std::min(k, line->extent(slot)), dim, largest, true);
      values.push_back(value);
      indices.push_back(index + line->begin(slot));
    }
    auto extents = at_most(line->extents, k);
    values = gather_along(*line->axis, values, dim, extents);
    indices = gather_along(*line->axis, indices, dim, extents);
    for (size_t slot = 0; slot < values.size(); ++slot) {
      auto [value, which] = at::topk(values[slot], k, dim, largest, sorted);
      values[slot] = value;
      indices[slot] = indices[slot].gather(dim, which);
    }
    auto sizes = line->sizes;
    sizes[dim] = k;
    auto* layout = without_cut(*line->layout, dim, false);
    stack = {wrap_contiguous(std::move(values), layout, sizes, self.scalar_type()),
             wrap_contiguous(std::move(indices), layout, sizes, at::kLong)};
  }
};

Lowering topk_along(const CutCall& c) {
  auto line = cut_line(c, c.call.int_arg("dim", -1));
  auto k = c.call.int_arg("k", 0);
  if (!line || k < 0 || k > line->sizes[line->dim]) return {};  // the plain op's error
  return Candidates{line, k, c.call.bool_arg("largest", true), c.call.bool_arg("sorted", true)};
}

// mode(dim, keepdim) returns values and indices.
std::vector<std::vector<int64_t>> picked(const OpCall& call) {
  auto shape = sizes_of(call.inputs[0]);
  if (shape.empty()) return {shape, shape};
  auto dim = c10::maybe_wrap_dim(call.int_arg("dim", -1), static_cast<int64_t>(shape.size()));
  if (call.bool_arg("keepdim", false))
    shape[dim] = 1;
  else
    shape.erase(shape.begin() + dim);
  return {shape, shape};
}

}  // namespace

void add_topk_and_sort(RuleTable& t) {
  t.add({"aten::topk", "aten::sort", "aten::sort.stable"}, scan_rule());
  t.lower("aten::topk", topk_along);
  t.add({"aten::median.dim", "aten::nanmedian.dim", "aten::kthvalue", "aten::mode"},
        pick_rule().with_shapes(picked).with_dtypes(with_places));
}

}  // namespace intarsia
