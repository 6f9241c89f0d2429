#pragma once
// The shortest way for in-place ops on tensors that lie alike, which is what optimizers do all day.

#include <string>

#include <torch/library.h>

namespace intarsia {

// Whether register_alike brings a kernel for the op: "aten::add_.Tensor".
bool has_alike_kernel(const std::string& op);
void register_alike(torch::Library& library);

}  // namespace intarsia
