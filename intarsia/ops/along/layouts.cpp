#include "intarsia/ops/along/layouts.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

bool is_cut(const at::Tensor& tensor, at::IntArrayRef dims) {
  if (!is_dtensor(tensor)) return false;
  for (auto& placement : placements_of(tensor)) {
    if (std::find(dims.begin(), dims.end(), cut_dim(placement)) != dims.end()) return true;
  }
  return false;
}

at::Tensor settle(const at::Tensor& tensor) {
  if (!is_dtensor(tensor) || !layout_of(tensor).has_partial()) return tensor;
  at::NoGradGuard below_autograd;
  return redistribute(tensor, settled(placements_of(tensor)));
}

at::Tensor lie_like(const at::Tensor& tensor, const at::Tensor& other) {
  if (!is_dtensor(tensor) || !is_dtensor(other) || &layout_of(tensor) == &layout_of(other)) return tensor;
  at::NoGradGuard below_autograd;
  return redistribute(tensor, settled(placements_of(other)));
}

at::Tensor in_order(const at::Tensor& tensor, at::IntArrayRef strides) {
  auto& body = body_of(tensor);
  return tensor.strides() == strides ? tensor
                                     : wrap(body.shards(), body.layout, tensor.sizes(), strides, tensor.dtype());
}

at::Tensor whole_along(const at::Tensor& tensor, int64_t dim) {
  if (!is_cut(tensor, dim)) return tensor;
  auto placements = placements_of(tensor);
  for (auto& placement : placements) {
    if (cut_dim(placement) == dim) placement = Replicate();
  }
  at::NoGradGuard below_autograd;
  return redistribute(tensor, placements);
}

at::ScalarType sum_type(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type; }

std::vector<int64_t> wrapped_dims(at::IntArrayRef dims, int64_t ndim) {
  std::vector<int64_t> wrapped;
  for (auto d : dims) wrapped.push_back(c10::maybe_wrap_dim(d, ndim));
  for (int64_t d = 0; dims.empty() && d < ndim; ++d) wrapped.push_back(d);
  return wrapped;
}

double extent(const at::Tensor& tensor, at::IntArrayRef dims) {
  double count = 1;
  for (auto d : dims) count *= static_cast<double>(tensor.size(d));
  return count;
}

}  // namespace intarsia
