#pragma once
// Ops of ATen that share a kernel template.

#include <string>

#include "intarsia/rules/table.h"

namespace intarsia {

// Kernel<at::_ops::add__Tensor>::run is the kernel of aten::add_.Tensor.
template <template <class> class Kernel, class... AtenOps>
struct KernelList {
  static void add_to(RuleTable& table) { (table.kernel(name_of<AtenOps>(), Kernel<AtenOps>::run), ...); }

 private:
  template <class AtenOp>
  static std::string name_of() {
    return c10::toString(c10::OperatorName(AtenOp::name, AtenOp::overload_name));
  }
};

}  // namespace intarsia
