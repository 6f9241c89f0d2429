// Compiled for AVX2 where there is such a thing (see CMakeLists.txt). It includes nothing but xxHash, whose functions
// are all local here: an inline function of another header, compiled for AVX2, might be the one that the linker keeps
// for everybody.
#include "intarsia/checkpoint/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace intarsia::checkpoint {

uint64_t checksum_avx2(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace intarsia::checkpoint
