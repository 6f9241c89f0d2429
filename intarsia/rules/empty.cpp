#include "intarsia/rules/empty.h"

#include <ATen/ATen.h>

namespace intarsia {
void zeros_if_empty(LocalCall& local) {
  for (auto& value : local.stack) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() > 0) continue;
    auto options = value.toTensor().options();
    std::vector<c10::IValue> results;
    for (size_t i = 0; i < local.out.size(); ++i) {
      auto& form = local.call.outputs[i];
      if (!form.defined) {
        results.emplace_back(at::Tensor());
        continue;
      }
      auto shape = local_shape(*local.out[i], form.sizes, local.slot.coordinate);
      results.emplace_back(at::zeros(at::IntArrayRef(shape), options.dtype(form.dtype)));
    }
    local.stack = std::move(results);
    return;
  }
  local.call_plain();
}

}  // namespace intarsia
