#include "intarsia/libtorch/version_counter.h"

namespace intarsia {

void share_counter(const at::Tensor& tensor, const at::Tensor& owner) {
  if (tensor.is_inference() || owner.is_inference()) return;
  tensor.unsafeGetTensorImpl()->set_version_counter(owner.unsafeGetTensorImpl()->version_counter());
}

}  // namespace intarsia
