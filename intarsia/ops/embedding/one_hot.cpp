// one_hot as a comparison with all class numbers.

#include <ATen/ATen.h>

#include "intarsia/ops/along/replicated.h"
#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// one_hot(self, num_classes): every element is compared with all class numbers.
void one_hot(Stack& stack) {
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
  stack = {at::eq(self.unsqueeze(-1), replicated_like(at::arange(classes), self)).to(at::kLong)};
}

}  // namespace

void add_one_hot(RuleTable& t) {
  t.always("aten::one_hot", one_hot);
  t.stays_whole("aten::one_hot");
}

}  // namespace intarsia
