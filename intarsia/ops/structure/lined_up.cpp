#include "intarsia/ops/structure/lined_up.h"

#include <ATen/ATen.h>
#include <ATen/native/TypeProperties.h>

#include "intarsia/ops/along/recut.h"

namespace intarsia {

const Layout* joining_layout(const CutCall& c, int64_t dim) {
  if (!c.on_one_mesh()) return nullptr;
  const Layout* layout = nullptr;
  for (size_t i = 0; i < c.now.size(); ++i) {
    if (c.input(i).dim() != c.input(0).dim()) return nullptr;
    if (!layout && c.cuts(i, dim)) layout = c.now[i];
    for (int64_t d = 0; d < c.input(i).dim(); ++d) {
      if (d != dim && c.input(i).sizes[d] != c.input(0).sizes[d]) return nullptr;
    }
  }
  return layout ? layout->with(settled(layout->placements())) : nullptr;
}

std::vector<at::Tensor> lined_up(const std::vector<at::Tensor>& tensors, const Layout* layout) {
  auto dtype = at::native::result_type(at::TensorList(tensors));
  std::vector<at::Tensor> result;
  for (auto& tensor : tensors) {
    auto value = tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
    result.push_back(brought_to(value, layout));
  }
  return result;
}

}  // namespace intarsia
