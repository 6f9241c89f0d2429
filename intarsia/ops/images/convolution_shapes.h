#pragma once
// Result shapes of convolutions on the meta device, which LibTorch leaves to backends.

namespace intarsia {

// Registers kernels for them on the meta device.
void register_convolution_shapes();

}  // namespace intarsia
