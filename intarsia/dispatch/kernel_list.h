#pragma once
// Ops of ATen that share a kernel template.

#include <set>
#include <string>

#include <torch/library.h>

namespace intarsia {

// Kernel<at::_ops::add__Tensor>::run is the kernel of aten::add_.Tensor.
template <template <class> class Kernel, class... AtenOps>
struct KernelList {
  static bool has(const std::string& op) {
    static const auto* names = new std::set<std::string>{name_of<AtenOps>()...};
    return names->count(op) > 0;
  }
  static void add_to(torch::Library& library) {
    (library.impl(name_of<AtenOps>().substr(6).c_str(), Kernel<AtenOps>::run), ...);
  }

 private:
  template <class AtenOp>
  static std::string name_of() {
    return c10::toString(c10::OperatorName(AtenOp::name, AtenOp::overload_name));
  }
};

}  // namespace intarsia
