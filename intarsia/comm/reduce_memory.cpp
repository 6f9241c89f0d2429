#include "intarsia/comm/reduce_memory.h"

#include <ATen/ATen.h>

#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

// Vectorized whatever the flags of the build.
template <class T>
__attribute__((optimize("O3"))) void add_memory(char* out, const char* a, const char* b, uint64_t bytes) {
  auto* to = reinterpret_cast<T*>(out);
  auto* x = reinterpret_cast<const T*>(a);
  auto* y = reinterpret_cast<const T*>(b);
#pragma GCC ivdep
  for (uint64_t i = 0; i < bytes / sizeof(T); ++i) to[i] = x[i] + y[i];
}

// Integer addition is exact, so this loop gives ATen's bits. Signed numbers wrap as unsigned ones do.
bool add_plainly(char* out, const char* a, const char* b, uint64_t bytes, c10::ScalarType type) {
  switch (type) {
    case at::kFloat: return add_memory<float>(out, a, b, bytes), true;
    case at::kDouble: return add_memory<double>(out, a, b, bytes), true;
    case at::kByte:
    case at::kChar: return add_memory<uint8_t>(out, a, b, bytes), true;
    case at::kShort:
    case at::kUInt16: return add_memory<uint16_t>(out, a, b, bytes), true;
    case at::kInt:
    case at::kUInt32: return add_memory<uint32_t>(out, a, b, bytes), true;
    case at::kLong:
    case at::kUInt64: return add_memory<uint64_t>(out, a, b, bytes), true;
    case at::kComplexFloat: return add_memory<float>(out, a, b, bytes), true;
    case at::kComplexDouble: return add_memory<double>(out, a, b, bytes), true;
    default: return false;
  }
}

}  // namespace

void reduce_memory(char* out, const char* a, const char* b, uint64_t bytes, c10::ScalarType type, ReduceOp op) {
  if (op == ReduceOp::sum && add_plainly(out, a, b, bytes, type)) return;
  auto count = static_cast<int64_t>(bytes / c10::elementSize(type));
  auto tensor = [&](const char* memory) { return at::from_blob(const_cast<char*>(memory), {count}, type); };
  auto to = tensor(out);
  reduce(to, tensor(a), tensor(b), op);
}

}  // namespace intarsia
