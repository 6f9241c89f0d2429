#include "intarsia/ops/order/cut_line.h"

#include <algorithm>

#include <c10/core/WrapDimMinimal.h>

#include "intarsia/core/cut_axes.h"
#include "intarsia/ops/along/recut.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

CutLinePtr cut_line(const CutCall& call, int64_t given_dim) {
  auto& self = call.input(0);
  if (self.dim() == 0 || !call.is_distributed(0) || self.numel() == 0) return nullptr;
  auto dim = c10::maybe_wrap_dim(given_dim, self.dim());
  auto& layout = *call.now[0];
  auto axes = axes_cutting(layout, dim);
  if (axes.empty() || layout.has_partial()) return nullptr;
  CutLine line{dim, &layout, &Axis::of(layout.mesh(), axes), {self.sizes.begin(), self.sizes.end()}, {}, {}};
  int64_t next = 0;
  for (auto& held : held_by_members(layout, dim, self.sizes[dim])) {
    int64_t extent = 0;
    for (auto& run : held) {
      if (run.size() > 0 && run.begin != next) return nullptr;
      next += run.size();
      extent += run.size();
    }
    line.begins.push_back(next - extent);
    line.extents.push_back(extent);
  }
  return std::make_shared<const CutLine>(std::move(line));
}

std::vector<int64_t> at_most(const std::vector<int64_t>& extents, int64_t count) {
  std::vector<int64_t> result;
  for (auto extent : extents) result.push_back(std::min(extent, count));
  return result;
}

at::Tensor wrap_contiguous(Shards shards, const Layout* layout, at::IntArrayRef sizes, at::ScalarType dtype) {
  return wrap(std::move(shards), layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace intarsia
