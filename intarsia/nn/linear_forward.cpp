#include "intarsia/nn/linear_forward.h"

#include <dlfcn.h>

#include <ATen/ATen.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/linear.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

bool linear_is_ours() {
  static const bool ours = [] {
    Dl_info here, forward;
    auto* known = reinterpret_cast<void*>(&linear_is_ours);
    auto* first = dlsym(RTLD_DEFAULT, "_ZN5torch2nn10LinearImpl7forwardERKN2at6TensorE");
    return dladdr(known, &here) && first && dladdr(first, &forward) && here.dli_fbase == forward.dli_fbase;
  }();
  return ours;
}

}  // namespace intarsia

at::Tensor torch::nn::LinearImpl::forward(const at::Tensor& input) {
  if (intarsia::is_dtensor(weight)) {
    return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  }
  return torch::nn::functional::linear(input, weight, bias);
}
