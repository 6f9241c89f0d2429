#pragma once
// Checksums and copies for processors with AVX2, on which they are twice as fast. Call them only there.

#include <cstdint>

namespace intarsia::checkpoint {

// The same as those of checksum.h.
uint64_t checksum_avx2(const void* data, int64_t bytes);
uint64_t copy_counted_avx2(void* to, const void* from, int64_t bytes);

}  // namespace intarsia::checkpoint
