#pragma once
// Copies memory with stores that bypass the CPU caches, for data that will not be read soon.

#include <cstdint>

namespace intarsia {

// From here on a result does not fit into the caches beside what it was made of. Writing it past them saves reading the
// old bytes first: a third of the traffic with memory.
constexpr uint64_t kPastCachesBytes = 4 << 20;

// As memcpy; on x86 the bytes go to memory without a place in the caches.
void copy_past_caches(char* to, const char* from, uint64_t bytes);

}  // namespace intarsia
