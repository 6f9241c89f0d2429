#include "intarsia/checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "intarsia/checkpoint/checksum_avx2.h"

namespace intarsia::checkpoint {
namespace {

bool has_avx2() {
#ifdef __x86_64__
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
#else
  return false;
#endif
}

}  // namespace

uint64_t checksum_of(const void* data, int64_t bytes) {
  return has_avx2() ? checksum_avx2(data, bytes) : XXH3_64bits(data, bytes);
}

std::string checksum_text(uint64_t checksum) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, checksum >>= 4) text[i] = "0123456789abcdef"[checksum & 15];
  return text;
}

}  // namespace intarsia::checkpoint
