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

bool holds_something(const OpCall& call, c10::ArrayRef<const Layout*> in, c10::ArrayRef<const Layout*> out,
                     const Slot& slot) {
  auto empty = [&](const Layout* layout, const TensorForm& form) {
    return layout && form.defined && c10::multiply_integers(local_shape(*layout, form.sizes, slot.coordinate)) == 0;
  };
  for (size_t i = 0; i < in.size(); ++i) {
    if (empty(in[i], call.inputs[i])) return false;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (empty(out[i], call.outputs[i])) return false;
  }
  return true;
}

Rule&& unless_empty(Rule&& rule) {
  rule.local.run = zeros_if_empty;
  rule.local.plain_does = holds_something;
  return std::move(rule);
}

}  // namespace intarsia
