#include "intarsia/nn/rollback.h"

#include <torch/nn/module.h>

#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {

std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (auto& parameter : module.parameters()) tensors.push_back(parameter);
  for (auto& buffer : module.buffers()) tensors.push_back(buffer);
  return tensors;
}

void check_not_sharded(const char* where, const torch::nn::Module& module) {
  for (auto& item : module.named_parameters()) {
    bool sharded = item.value().defined() && item.value().key_set().has(kFirstUseKey);
    TORCH_CHECK_VALUE(!sharded, "[", where, "] \"", item.key(), "\" of ", module.name(), " is sharded by fully_shard, ",
                      "which says how it is laid out. Call fully_shard after ", where, ".");
  }
}

Rollback::Rollback(torch::nn::Module& module) {
  for (auto& tensor : tensors_of(module)) {
    tensors_.push_back(
        {tensor, tensor.variable_data(), tensor.grad(), is_dtensor(tensor) ? body_of(tensor).note : NotePtr()});
  }
  module.apply([&](torch::nn::Module& part) {
    if (auto* hooks = hooks_of(part)) hooks_.emplace_back(hooks, *hooks->lists_);
  });
}

// The error that caused the rollback is the one to report: a tensor that cannot be restored must not hide it, or end
// the process.
void Rollback::restore(const Entry& entry) noexcept {
  try {
    if (is_dtensor(entry.tensor)) attach_note(entry.tensor, NotePtr());  // else set_data would pass it on
    entry.tensor.set_data(entry.data);
    if (is_dtensor(entry.tensor)) attach_note(entry.tensor, entry.note);
    entry.tensor.mutable_grad() = entry.grad;
  } catch (const std::exception& error) {
    TORCH_WARN("a tensor of shape ", entry.tensor.sizes(), " could not be put back as it was: ", error.what());
  }
}

Rollback::~Rollback() {
  for (auto& entry : tensors_) restore(entry);
  for (auto& [hooks, lists] : hooks_) *hooks->lists_ = lists;
}

}  // namespace intarsia
