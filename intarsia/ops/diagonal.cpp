// The diagonal of two dims of which one is cut, and the matrix that has ones there.

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/comm/trace.h"
#include "intarsia/ops/copied_view.h"
#include "intarsia/ops/layouts.h"
#include "intarsia/ops/recut.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// diagonal(self, offset, dim1, dim2) with one of the two dims cut: a rank picks one element from each of its lines, which
// gives the diagonal cut as that dim is, and what lies before and after it is sliced away.
bool diagonal(Stack& stack) {
  auto self = stack[0].toTensor();
  if (self.dim() < 2) return false;
  auto offset = stack[1].toInt();
  auto row = c10::maybe_wrap_dim(stack[2].toInt(), self.dim()), column = c10::maybe_wrap_dim(stack[3].toInt(), self.dim());
  auto stride = self.stride(row) + self.stride(column);
  if (row == column || is_cut(self, row) == is_cut(self, column)) return false;
  if (is_cut(self, column)) std::swap(row, column), offset = -offset;
  auto begin = std::max<int64_t>(0, -offset), end = std::min(self.size(row), self.size(column) - offset);
  if (end <= begin) return false;
  CauseScope cause("aten::diagonal", true);
  auto& layout = layout_of(self);
  std::vector<int64_t> sizes, strides;
  std::vector<int64_t> place(self.dim(), -1);  // of each dim in the result
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == row || d == column) continue;
    place[d] = sizes.size();
    sizes.push_back(self.size(d)), strides.push_back(self.stride(d));
  }
  place[row] = sizes.size();
  sizes.push_back(self.size(row)), strides.push_back(stride);
  Placements placements = layout.placements();
  for (auto& p : placements) p = cut_dim(p) < 0 ? p : with_cut_dim(p, place[cut_dim(p)]);
  auto& shards = meta_of(self).shards();
  Shards picked;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    std::vector<at::Tensor> places = {at::empty({0}, at::kLong)};
    for (auto& run : intervals_of(layout, row, self.size(row), layout.mesh().slots()[slot].coordinate)) {
      places.push_back(at::arange(run.begin, run.end));
    }
    auto lines = shards[slot].movedim({row, column}, {-2, -1});
    auto at = at::cat(places).add(offset).clamp(0, self.size(column) - 1).unsqueeze(-1);
    auto shape = lines.sizes().vec();
    shape.back() = 1;
    picked.push_back(lines.gather(-1, at.expand(shape)).squeeze(-1));
  }
  auto lines = wrap(std::move(picked), layout.with(placements), sizes, c10::contiguous_strides(sizes), self.dtype());
  std::vector<Source> sources;
  for (auto p = begin; p < end; ++p) sources.push_back({0, p});
  auto result = recut({lines}, place[row], sources);
  stack = {as_view(result, strides, "aten::diagonal", "", stack)};
  return true;
}

// eye(n, m, out): the result has no other tensor to take its layout from than the one that it is written into.
bool eye_into(Stack& stack) {
  auto rows = stack[0].toInt(), columns = stack.size() == 3 ? stack[1].toInt() : rows;
  auto out = stack.back().toTensor();
  std::vector<int64_t> shape = {rows, columns};
  TORCH_CHECK_VALUE(out.sizes() == at::IntArrayRef(shape), "[aten::eye] out has shape ", out.sizes(), ", but the result has ",
                    shape, ". A distributed tensor keeps its shape: give one of that shape.");
  out.zero_();
  out.diagonal().fill_(1);
  stack = {out};
  return true;
}

}  // namespace

void add_diagonal_ops(RuleTable& t) {
  t.decompose("aten::diagonal", diagonal);
  t.decompose("aten::eye.out", eye_into);
  t.decompose("aten::eye.m_out", eye_into);
}

}  // namespace intarsia
