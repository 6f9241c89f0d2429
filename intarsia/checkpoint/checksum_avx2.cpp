// Compiled for AVX2 where there is such a thing (see CMakeLists.txt). It includes nothing but xxHash, whose functions are all
// local here: an inline function of another header, compiled for AVX2, might be the one that the linker keeps for everybody.
#include "intarsia/checkpoint/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace intarsia::checkpoint {
namespace {

constexpr int64_t kLine = 128;   // bytes that are copied at a time
constexpr int64_t kStep = 1024;  // and that are counted and copied while they are in the first cache

// Whole lines to a place that is aligned to 32 bytes, without reading what stood there: a plain copy moves half as much again.
void copy_lines(char* to, const char* from, int64_t bytes) {
#ifdef __AVX2__
  for (int64_t i = 0; i < bytes; i += kLine) {
    __m256i parts[4];
    for (int j = 0; j < 4; ++j) parts[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32 * j));
    for (int j = 0; j < 4; ++j) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32 * j), parts[j]);
  }
#else
  memcpy(to, from, bytes);
#endif
}

// Asks for what comes after these bytes: counting would wait for it.
void ask_for_next(const char* from, int64_t bytes) {
#ifdef __AVX2__
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(from + bytes + i, _MM_HINT_T0);
#endif
}

void finish_lines() {
#ifdef __AVX2__
  _mm_sfence();  // others see them
#endif
}

// Bytes are counted in `sum` just before they are copied.
void copy(char* to, const char* from, int64_t bytes, XXH3_state_t& sum) {
  auto count = [&](int64_t some) {
    ask_for_next(from, some);
    XXH3_64bits_update(&sum, from, some);
  };
  auto plain = [&](int64_t some) {
    count(some);
    memcpy(to, from, some);
    to += some, from += some, bytes -= some;
  };
  auto ahead = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % 32);
  if (ahead) plain(ahead < bytes ? ahead : bytes);
  while (bytes >= kLine) {
    auto some = bytes < kStep ? bytes / kLine * kLine : kStep;
    count(some);
    copy_lines(to, from, some);
    to += some, from += some, bytes -= some;
  }
  if (bytes) plain(bytes);
  finish_lines();
}

}  // namespace

uint64_t checksum_avx2(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t copy_counted_avx2(void* to, const void* from, int64_t bytes) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  copy(static_cast<char*>(to), static_cast<const char*>(from), bytes, state);
  return XXH3_64bits_digest(&state);
}

}  // namespace intarsia::checkpoint
