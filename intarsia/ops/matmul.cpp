// matmul of vectors and of two matrices has ops of its own; one_hot is a comparison.

#include <ATen/ATen.h>

#include "intarsia/rules/table.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/linear.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

bool matmul(Stack& stack) {
  auto result = small_matmul(stack[0].toTensor(), stack[1].toTensor());
  if (!result.defined()) return false;
  stack = {result};
  return true;
}

// one_hot(self, num_classes): every element is compared with all class numbers.
bool one_hot(Stack& stack) {
  auto self = stack[0].toTensor();
  auto classes = stack[1].toInt();
  TORCH_CHECK(self.dtype() == at::kLong, "one_hot is only applicable to index tensor of type LongTensor.");
  if (self.numel() == 0) {
    TORCH_CHECK(classes > 0, "Can not infer total number of classes from empty tensor.");
  } else {
    TORCH_CHECK(self.min().item<int64_t>() >= 0, "Class values must be non-negative.");
    auto largest = self.max().item<int64_t>();
    if (classes == -1) classes = largest + 1;
    TORCH_CHECK(classes > largest, "Class values must be smaller than num_classes.");
  }
  auto& mesh = mesh_of(self);
  auto numbers = distribute_tensor(at::arange(classes), mesh, Placements(mesh.ndim(), Replicate()), std::nullopt);
  stack = {at::eq(self.unsqueeze(-1), numbers).to(at::kLong)};
  return true;
}

}  // namespace

void add_matmul_ops(RuleTable& t) {
  t.decompose("aten::matmul", matmul);
  t.decompose("aten::one_hot", one_hot);
}

}  // namespace intarsia
