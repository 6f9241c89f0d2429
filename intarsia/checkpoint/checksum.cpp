#include "intarsia/checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace intarsia::checkpoint {

uint64_t checksum_of(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

std::string checksum_text(uint64_t checksum) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, checksum >>= 4) text[i] = "0123456789abcdef"[checksum & 15];
  return text;
}

}  // namespace intarsia::checkpoint
