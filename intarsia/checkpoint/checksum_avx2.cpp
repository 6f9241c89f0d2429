// Compiled with AVX2 where the compiler has it (see CMakeLists.txt). It includes nothing but xxHash, whose functions
// are all local here: the linker might keep an inline function of another header, compiled with AVX2, for the whole
// program.
#include "intarsia/checkpoint/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace intarsia::checkpoint {

uint64_t checksum_avx2(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace intarsia::checkpoint
