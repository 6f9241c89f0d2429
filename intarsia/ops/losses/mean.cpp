#include "intarsia/ops/losses/mean.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace intarsia {
namespace {

void widen_halves(Stack& stack, size_t tensors) {
  for (size_t i = 0; i < tensors; ++i) {
    auto tensor = stack[i].toTensor();
    if (at::isReducedFloatingType(tensor.scalar_type())) stack[i] = tensor.to(at::kFloat);
  }
}

// The dtype to which a result is converted back if it was computed in float.
std::optional<at::ScalarType> half_of(const CutCall& c, size_t widened) {
  bool half = widened > 0 && at::isReducedFloatingType(c.input(0).dtype);
  return half ? std::optional(c.input(0).dtype) : std::nullopt;
}

}  // namespace

int64_t reduction_of(const OpCall& call) { return call.int_arg("reduction", kMean); }

Planner mean_by_sum(const char* op, Terms terms, size_t widened) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  return [=](const CutCall& c) -> Lowering {
    auto count = reduction_of(c.call) == kMean ? terms(c.call) : std::nullopt;
    if (!count) return {};
    return [=, half = half_of(c, widened), reduction = c.call.arg_index("reduction")](Stack& stack) {
      stack[reduction] = kSum;
      widen_halves(stack, widened);
      handle.callBoxed(stack);
      auto mean = at::div(stack[0].toTensor(), *count);
      stack[0] = half ? mean.to(*half) : mean;
    };
  };
}

Planner mean_by_sum_backward(const char* op, Terms terms, size_t widened) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  return [=](const CutCall& c) -> Lowering {
    auto count = reduction_of(c.call) == kMean ? terms(c.call) : std::nullopt;
    if (!count) return {};
    return [=, half = half_of(c, widened), reduction = c.call.arg_index("reduction")](Stack& stack) {
      widen_halves(stack, widened);
      stack[0] = at::div(stack[0].toTensor(), *count);
      stack[reduction] = kSum;
      handle.callBoxed(stack);
      if (half) stack[0] = stack[0].toTensor().to(*half);
    };
  };
}

}  // namespace intarsia
