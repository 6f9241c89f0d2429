#pragma once
// Hashes that are the same in every process.

#include <cstdint>

namespace intarsia {

// One more value in a hash.
inline uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 29;
}

// A text in a hash, eight bytes at a time: it is on the way of every collective.
uint64_t hash_text(uint64_t hash, const char* text);

}  // namespace intarsia
