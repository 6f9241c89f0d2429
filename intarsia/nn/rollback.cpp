#include "intarsia/nn/rollback.h"

#include <torch/nn/module.h>

#include "intarsia/tensor/dtensor.h"

namespace intarsia {

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (auto& parameter : module.parameters()) tensors.push_back(parameter);
  for (auto& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

Rollback::Rollback(torch::nn::Module& module) {
  for (auto& tensor : tensors_of(module)) {
    tensors_.push_back({tensor, tensor.variable_data(), tensor.grad(), is_dtensor(tensor) ? body_of(tensor).note : NotePtr()});
  }
  module.apply([&](torch::nn::Module& part) {
    if (auto* hooks = hooks_of(part)) hooks_.emplace_back(hooks, *hooks->lists_);
  });
}

Rollback::~Rollback() {
  for (auto& entry : tensors_) {
    if (is_dtensor(entry.tensor)) attach_note(entry.tensor, NotePtr());  // else set_data would hand it on
    entry.tensor.set_data(entry.data);
    if (is_dtensor(entry.tensor)) attach_note(entry.tensor, entry.note);
    entry.tensor.mutable_grad() = entry.grad;
  }
  for (auto& [hooks, lists] : hooks_) *hooks->lists_ = lists;
}

}  // namespace intarsia
