#include "intarsia/checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "intarsia/checkpoint/checksum_avx2.h"

namespace intarsia::checkpoint {
namespace {

uint64_t checksum_anywhere(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

auto* fastest_checksum() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return &checksum_avx2;
#endif
  return &checksum_anywhere;
}

}  // namespace

uint64_t checksum_of(const void* data, int64_t bytes) {
  static auto* const fastest = fastest_checksum();
  return fastest(data, bytes);
}

std::string checksum_text(uint64_t checksum) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, checksum >>= 4) text[i] = "0123456789abcdef"[checksum & 15];
  return text;
}

}  // namespace intarsia::checkpoint
