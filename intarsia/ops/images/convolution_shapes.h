#pragma once
// The shapes of convolutions of tensors without data, which LibTorch leaves to backends.

namespace intarsia {

// Puts kernels that tell them behind LibTorch's ops, on the meta device.
void register_convolution_shapes();

}  // namespace intarsia
