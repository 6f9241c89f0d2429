#pragma once
// Dispatch keys that this library borrows. LibTorch hands out none, so these are keys that it defines but has no
// kernels for. Every borrowed key is named here; ledger.h checks at start that nobody else uses it.

#include <string>

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

namespace intarsia {

// On tensors. Each backend key comes with an autograd key.
constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse3;  // a distributed tensor
constexpr auto kDTensorAutogradKey = c10::DispatchKey::AutogradPrivateUse3;
constexpr auto kPerRankKey = c10::DispatchKey::PrivateUse2;  // a per-rank tensor: it stands for a value per rank
constexpr auto kPerRankAutogradKey = c10::DispatchKey::AutogradPrivateUse2;
constexpr auto kNoteKey = c10::DispatchKey::DeferredInit;                     // see Note [Tensors with a note]
constexpr auto kFirstUseKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;  // see Note [Gathered at first use]

// Included on a thread while LibTorch's code works on distributed tensors, see Note [Factories]. No tensor has them.
// The second is excluded by default on every thread.
constexpr auto kFactoryKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr auto kBesidePlainKey = c10::DispatchKey::AutocastIPU;
constexpr c10::DispatchKeySet kFactoryKeys({kFactoryKey, kBesidePlainKey});

// Included on a thread in a LocalRandomScope only; excluded by default on every thread. No tensor has it.
constexpr auto kLocalRandomKey = c10::DispatchKey::AutocastHPU;

// A backend without kernels: redispatching with it leads to an op's composite kernel.
constexpr auto kCompositeKey = c10::DispatchKey::FPGA;

// The autograd key of a backend without kernels: what is computed for it is LibTorch's general autograd kernel.
constexpr auto kGeneralAutogradKey = c10::DispatchKey::AutogradVE;

// A quantized tensor and a distributed one together.
constexpr auto kQuantizedWithDTensorKey = c10::DispatchKey::QuantizedPrivateUse3;

// The key by which autocast sees the tensors of a device. PyTorch adds it to the tensors of its own backends only.
inline c10::DispatchKeySet autocast_keys(c10::Device device) {
  if (device.is_cpu()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);
  if (device.is_cuda()) return c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA);
  return {};
}

// The borrowed keys for which an op of LibTorch has a kernel, as text; empty if there are none. Call this before our
// own kernels are registered.
std::string borrowed_keys_in_use();

}  // namespace intarsia
