#include "intarsia/core/copy_past_caches.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace intarsia {

#if defined(__SSE2__)

void copy_past_caches(char* to, const char* from, uint64_t bytes) {
  constexpr uint64_t kLine = 64;  // filled whole, so that it leaves the core in one piece
  auto head = std::min<uint64_t>(bytes, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    auto a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
         d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to, from, bytes);
  _mm_sfence();  // other threads see these stores before whatever is published next
}

#else

void copy_past_caches(char* to, const char* from, uint64_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace intarsia
