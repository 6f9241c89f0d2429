#pragma once
// Restores a module if a change to it fails half-way.

#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/nn/hooks.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

// All defined parameters and buffers, submodules included.
std::vector<at::Tensor> tensors_of(const torch::nn::Module& module);

// Raises an error of `where`, before anything is changed, if fully_shard has sharded a parameter of the module: it
// could not get another layout.
void check_not_sharded(const char* where, const torch::nn::Module& module);

// Saves tensors, gradients, styles and hooks; the destructor restores them, unless complete() was called.
class Rollback {
 public:
  explicit Rollback(torch::nn::Module& module);
  ~Rollback();
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  void complete() { tensors_.clear(), hooks_.clear(); }

 private:
  struct Entry {
    at::Tensor tensor, data, grad;
    NotePtr note;
  };
  static void restore(const Entry& entry) noexcept;
  std::vector<Entry> tensors_;
  std::vector<std::pair<ForwardHooks*, HookLists>> hooks_;
};

}  // namespace intarsia
