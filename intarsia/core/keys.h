#pragma once
// The LibTorch dispatch keys of distributed and per-rank tensors.

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

namespace intarsia {

constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse3;  // a distributed tensor
constexpr auto kPerRankKey = c10::DispatchKey::PrivateUse2;  // a per-rank tensor
constexpr auto kNoteKey = c10::DispatchKey::DeferredInit;    // see Note [Tensors with a note]

constexpr auto kFirstUseKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;  // see Note [Gathered at first use]

// On in LibTorch's own code on distributed tensors, see Note [Tensors made from nothing]. They are on no tensor, and LibTorch
// has no kernel on them. The second is off by default on every thread.
constexpr auto kFromNothingKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr auto kBesidePlainKey = c10::DispatchKey::AutocastIPU;
constexpr c10::DispatchKeySet kFromNothingKeys({kFromNothingKey, kBesidePlainKey});

// The autocast key of a device. PyTorch adds it to tensors of its built-in backends only.
inline c10::DispatchKeySet autocast_keys(c10::Device device) {
  if (device.is_cpu()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  if (device.is_cuda()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA);
  return {};
}

}  // namespace intarsia
