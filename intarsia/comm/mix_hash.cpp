#include "intarsia/comm/mix_hash.h"

#include <algorithm>
#include <cstring>

namespace intarsia {

uint64_t hash_text(uint64_t hash, const char* text) {
  auto length = std::strlen(text);
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text + i, std::min<size_t>(8, length - i));
    hash = mix_hash(hash, word);
  }
  return hash;
}

}  // namespace intarsia
