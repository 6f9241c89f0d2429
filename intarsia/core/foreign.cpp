#include "intarsia/core/foreign.h"

namespace intarsia {
namespace {

using ForeignKey = c10::DispatchKey;

constexpr c10::DispatchKeySet kPython({ForeignKey::Python, ForeignKey::PythonTLSSnapshot});
constexpr c10::DispatchKeySet kTransforms({ForeignKey::FuncTorchBatched, ForeignKey::BatchedNestedTensor,
                                           ForeignKey::FuncTorchGradWrapper});

std::string wrapper_kind(const at::Tensor& tensor) {
  auto keys = tensor.key_set();
  if (keys.has_any(kPython)) return "a tensor subclass with __torch_dispatch__";
  return keys.has(ForeignKey::Functionalize) ? "a wrapper of functionalization" : "";
}

}  // namespace

std::string foreign_kind(const at::Tensor& tensor) {
  if (!tensor.defined()) return "";
  if (auto kind = wrapper_kind(tensor); !kind.empty()) return kind;
  if (tensor.key_set().has_any(kTransforms)) return "a wrapper of functorch";
  if (tensor.is_nested()) return "a nested tensor";
  if (tensor.layout() != at::kStrided) return c10::str("a tensor of the layout ", tensor.layout());
  return tensor.is_quantized() ? "a quantized tensor" : "";
}

void check_no_wrapper(const at::Tensor& tensor, const char* function, const std::string& name) {
  if (!tensor.defined()) return;
  auto kind = wrapper_kind(tensor);
  TORCH_CHECK_NOT_IMPLEMENTED(kind.empty(), "[", function, "] ", name, " is ", kind,
                              ", which has no memory to share or ",
                              "to send. Give plain tensors, such as those inside of it.");
}

}  // namespace intarsia
