#pragma once
// Hashes that are the same in every process.

#include <cstdint>

namespace intarsia {

// Adds a value to a hash.
inline uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 29;
}

// Adds a text to a hash, eight bytes at a time: every collective does so.
uint64_t hash_text(uint64_t hash, const char* text);

}  // namespace intarsia
