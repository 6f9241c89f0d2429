#pragma once
// The key by which autocast sees the tensors of a device. PyTorch adds it to the tensors of its own backends only.

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

namespace intarsia {

inline c10::DispatchKeySet autocast_keys(c10::Device device) {
  if (device.is_cpu()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  if (device.is_cuda()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA);
  return {};
}

}  // namespace intarsia
