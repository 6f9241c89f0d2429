#pragma once
// Copies memory with stores that bypass the CPU caches, for data that will not be read soon.

#include <cstdint>

namespace intarsia {

// From this size on, a result and its inputs do not fit into the caches together. Stores that bypass the caches then
// save reading the old bytes first: a third of the memory traffic.
constexpr uint64_t kPastCachesBytes = 4 << 20;

// Like memcpy, but on x86 the bytes go to memory without a place in the caches.
void copy_past_caches(char* to, const char* from, uint64_t bytes);

}  // namespace intarsia
