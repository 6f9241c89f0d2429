// Random tensors with the form of another tensor.

#include <ATen/ATen.h>

#include "intarsia/rules/table.h"

namespace intarsia {
namespace {

// Sharded as the other is. Of a pending reduction the result is whole: zeros_like is, where empty_like may be pending.
template <class Draw>
at::Tensor drawn_like(const at::Tensor& self, at::TensorOptions options, std::optional<at::MemoryFormat> format,
                      Draw draw) {
  auto target = at::zeros_like(self, options, format);
  at::NoGradGuard no_grad;
  draw(target);
  return target;
}

at::TensorOptions options_of(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool> pinned) {
  return at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pinned);
}

at::Tensor rand_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pinned,
                     std::optional<at::MemoryFormat> format) {
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [](auto& t) { t.uniform_(0, 1); });
}

at::Tensor randn_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<at::Device> device, std::optional<bool> pinned,
                      std::optional<at::MemoryFormat> format) {
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [](auto& t) { t.normal_(0, 1); });
}

at::Tensor randint_like(const at::Tensor& self, c10::SymInt high, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned,
                        std::optional<at::MemoryFormat> format) {
  auto end = high.expect_int();
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [&](auto& t) { t.random_(0, end); });
}

at::Tensor randint_like_from(const at::Tensor& self, c10::SymInt low, c10::SymInt high,
                             std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool> pinned,
                             std::optional<at::MemoryFormat> format) {
  auto begin = low.expect_int(), end = high.expect_int();
  return drawn_like(self, options_of(dtype, layout, device, pinned), format, [&](auto& t) { t.random_(begin, end); });
}

}  // namespace

void add_random_like(RuleTable& t) {
  t.composite("aten::rand_like", rand_like);
  t.composite("aten::randn_like", randn_like);
  t.composite("aten::randint_like", randint_like);
  t.composite("aten::randint_like.low_dtype", randint_like_from);
}

}  // namespace intarsia
