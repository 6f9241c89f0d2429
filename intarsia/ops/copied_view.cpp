#include "intarsia/ops/copied_view.h"

#include "intarsia/tensor/meta.h"

namespace intarsia {

at::Tensor as_view(const at::Tensor& result, at::IntArrayRef strides, const char* name, const char* overload,
                   const std::vector<c10::IValue>& stack) {
  auto base = stack[0].toTensor();
  auto meta = shared_meta_of(result);
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  auto recipe = std::make_unique<Recipe>(
      Recipe{another_handle(base), op, stack, 0, 0, result.sizes().vec(), meta_of(base).version()});
  recipe->args[0] = c10::IValue();
  meta->follow(std::move(recipe));
  return wrap(std::move(meta), result.sizes(), strides, result.dtype());
}

}  // namespace intarsia
