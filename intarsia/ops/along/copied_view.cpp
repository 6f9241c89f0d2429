#include "intarsia/ops/along/copied_view.h"

#include "intarsia/tensor/body.h"
#include "intarsia/tensor/strides.h"

namespace intarsia {

at::Tensor as_view(const at::Tensor& result, at::IntArrayRef strides, const char* name, const char* overload,
                   const std::vector<c10::IValue>& stack) {
  auto base = stack[0].toTensor();
  auto shards = body_of(result).shards();
  for (auto& shard : shards) follow_strides(shard, strides);
  auto body = c10::make_intrusive<DTensorBody>(std::move(shards), body_of(result).layout);
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  auto recipe = std::make_unique<Recipe>(
      Recipe{another_handle(base), op, stack, 0, 0, result.sizes().vec(), body_of(base).version()});
  recipe->args[0] = c10::IValue();
  body->follow(std::move(recipe));
  return wrap_view(base, std::move(body), result.sizes(), strides, result.dtype());
}

}  // namespace intarsia
