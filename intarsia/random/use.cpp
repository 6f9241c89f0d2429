#include "intarsia/random/use.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "intarsia/random/mt19937.h"

namespace intarsia {
namespace {

constexpr int64_t kAsked = 64;

// The number of words that the plain op takes for `count` elements; none if it rejects the arguments.
int words_for(int64_t count, const c10::OperatorHandle& op, const Stack& arguments, at::ScalarType dtype,
              bool contiguous) {
  auto generator = at::detail::createCPUGenerator();
  auto stack = arguments;
  if (stack[1].isTensor()) stack[1] = at::full({count}, 0.5, stack[1].toTensor().options());
  try {
    fill(op, std::move(stack), room_for(count, dtype, contiguous), generator);
  } catch (const c10::Error&) {
    return 0;
  }
  return drawn_since_seeding(generator.get<at::CPUGeneratorImpl>()->engine().data());
}

}  // namespace

StreamUse use_of(const c10::OperatorHandle& op, const Stack& arguments, at::ScalarType dtype, bool contiguous) {
  auto ask = [&](int64_t count) { return words_for(count, op, arguments, dtype, contiguous); };
  auto words = ask(kAsked) / kAsked;
  auto& name = op.operator_name().name;
  bool is_normal = name == "aten::normal_";
  if ((words != 1 && words != 2) || ask(kAsked) % kAsked != 0) return {};
  if (is_normal && contiguous) {
    constexpr int64_t unit = 16;
    auto again = ask(unit + 1) - unit * words;
    if (again != unit * words && again != (unit + 1) * words) return {};
    return {unit, unit * words, false, true, again == unit * words};
  }
  if (is_normal || name == "aten::log_normal_") {
    return words == 2 && ask(1) == 4 ? StreamUse{2, 4, true, false, false} : StreamUse{};
  }
  return ask(1) == words ? StreamUse{1, words, false, false, false} : StreamUse{};
}

void fill(const c10::OperatorHandle& op, Stack arguments, const at::Tensor& target, const at::Generator& generator) {
  arguments.front() = target;
  arguments.back() = generator;
  op.callBoxed(arguments);
}

at::Tensor room_for(int64_t count, at::ScalarType dtype, bool contiguous) {
  return contiguous ? at::empty({count}, dtype) : at::empty({count, 2}, dtype).select(1, 0);
}

}  // namespace intarsia
