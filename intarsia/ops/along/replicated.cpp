#include "intarsia/ops/along/replicated.h"

#include <ATen/ATen.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

at::Tensor replicated_like(const at::Tensor& plain, const at::Tensor& model) {
  auto& mesh = mesh_of(model);
  return distribute_tensor(plain, mesh, Placements(mesh.ndim(), Replicate()), std::nullopt);
}

std::vector<int64_t> numbers_in(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  auto whole = (is_dtensor(tensor) ? full_tensor(tensor) : tensor).to(at::kCPU, at::kLong).contiguous();
  return {whole.data_ptr<int64_t>(), whole.data_ptr<int64_t>() + whole.numel()};
}

}  // namespace intarsia
