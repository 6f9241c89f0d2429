// The diagonal of two dims, ops that put one into a matrix, and eye.

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/ops/along/copied_view.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/ops/structure/parts.h"
#include "intarsia/rules/table.h"
#include "intarsia/rules/view_builders.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// diagonal(dim1, dim2) removes two dims and adds one at the end.
std::vector<int64_t> diagonal_dims(const OpCall& call) {
  std::vector<int64_t> map;
  auto ndim = call.inputs[0].dim();
  auto dim1 = call.dim_arg("dim1", ndim), dim2 = call.dim_arg("dim2", ndim);
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != dim1 && d != dim2) map.push_back(d);
  }
  map.push_back(-1);
  return map;
}

std::vector<std::vector<int64_t>> embedded_shapes(const OpCall& call) {
  if (call.inputs[0].dim() < 1) return {};
  auto shape = sizes_of(call.inputs[0]);
  auto length = shape.back() + std::abs(call.int_arg("offset", 0));
  shape.pop_back();
  auto ndim = static_cast<int64_t>(shape.size()) + 2;
  auto first = call.dim_arg("dim1", ndim, -2), second = call.dim_arg("dim2", ndim, -1);
  for (auto dim : {std::min(first, second), std::max(first, second)}) shape.insert(shape.begin() + dim, length);
  return {shape};
}

// One element from each line of a matrix whose `row` dim is sharded.
struct PickedLines {
  int64_t row, column;
  std::vector<std::vector<int64_t>> at;  // per slot: the column of each of its lines
  const Layout* layout;                  // of what is picked
  std::vector<int64_t> sizes, strides;   // of the same; strides as the plain view has them
};

PickedLines plan_lines(const Layout& layout, const TensorForm& self, int64_t row, int64_t column, int64_t offset) {
  PickedLines lines{row, column, {}, nullptr, {}, {}};
  std::vector<int64_t> place(self.dim(), -1);  // of each dim in the result
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == row || d == column) continue;
    place[d] = lines.sizes.size();
    lines.sizes.push_back(self.sizes[d]), lines.strides.push_back(self.strides[d]);
  }
  place[row] = lines.sizes.size();
  lines.sizes.push_back(self.sizes[row]), lines.strides.push_back(self.strides[row] + self.strides[column]);
  auto placements = layout.placements();
  for (auto& p : placements) p = cut_dim(p) < 0 ? p : with_cut_dim(p, place[cut_dim(p)]);
  lines.layout = layout.with(placements);
  for (auto& slot : layout.mesh().slots()) {
    auto& at = lines.at.emplace_back();
    for (auto& run : intervals_of(layout, row, self.sizes[row], slot.coordinate)) {
      for (auto p = run.begin; p < run.end; ++p)
        at.push_back(std::clamp<int64_t>(p + offset, 0, self.sizes[column] - 1));
    }
  }
  return lines;
}

at::Tensor picked(const PickedLines& lines, const at::Tensor& self) {
  auto& shards = body_of(self).shards();
  Shards parts;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto matrix = shards[slot].movedim({lines.row, lines.column}, {-2, -1});
    auto shape = matrix.sizes().vec();
    shape.back() = 1;
    auto at = at::tensor(lines.at[slot], at::kLong).unsqueeze(-1);
    parts.push_back(matrix.gather(-1, at.expand(shape)).squeeze(-1));
  }
  return wrap(std::move(parts), lines.layout, lines.sizes, c10::contiguous_strides(lines.sizes), self.dtype());
}

// diagonal(self, offset, dim1, dim2) with one of the two dims sharded: a rank picks one element from each of its lines,
// which gives the diagonal sharded as that dim is; what lies before and after it is sliced away.
Lowering diagonal_along(const CutCall& c) {
  auto& self = c.input(0);
  if (self.dim() < 2) return {};
  auto offset = c.call.int_arg("offset", 0);
  auto row = c.call.dim_arg("dim1", self.dim()), column = c.call.dim_arg("dim2", self.dim());
  if (row == column || c.cuts(0, row) == c.cuts(0, column)) return {};
  if (c.cuts(0, column)) std::swap(row, column), offset = -offset;
  auto begin = std::max<int64_t>(0, -offset), end = std::min(self.sizes[row], self.sizes[column] - offset);
  if (end <= begin) return {};
  auto lines = plan_lines(*c.now[0], self, row, column, offset);
  std::vector<Source> sources;
  for (auto p = begin; p < end; ++p) sources.push_back({0, p});
  auto plan = plan_recut(*lines.layout, lines.sizes, static_cast<int64_t>(lines.sizes.size()) - 1, sources);
  return [=](Stack& stack) {
    auto result = recut(plan, {picked(lines, stack[0].toTensor())});
    stack = {as_view(result, lines.strides, "aten::diagonal", "", stack)};
  };
}

// eye(n, m, out): the layout of the result can only come from the tensor that is written.
void eye_into(Stack& stack) {
  auto rows = stack[0].toInt(), columns = stack.size() == 3 ? stack[1].toInt() : rows;
  auto out = stack.back().toTensor();
  std::vector<int64_t> shape = {rows, columns};
  TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef(shape), "[aten::eye] out has shape ", out.sizes(),
                    ", but the result has ", shape, ". A distributed tensor keeps its shape: give one of that shape.");
  out.zero_();
  out.diagonal().fill_(1);
  stack = {out};
}

}  // namespace

void add_diagonals(RuleTable& t) {
  t.add("aten::diagonal", view(diagonal_dims));
  t.lower("aten::diagonal", diagonal_along);
  t.add("aten::diagonal_backward", part_gradient({"dim1", "dim2"}, true));
  t.add("aten::diagonal_scatter", put_into({"dim1", "dim2"}, true).like_input(0));
  t.add("aten::diag_embed",
        put_into_zeros("rearrange", {"dim1", "dim2"}, true).like_input(0).with_shapes(embedded_shapes));
  t.always("aten::eye.out", eye_into);
  t.always("aten::eye.m_out", eye_into);
}

}  // namespace intarsia
