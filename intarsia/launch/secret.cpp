#include "intarsia/launch/secret.h"

#include <stdlib.h>
#include <sys/random.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

constexpr size_t kBlock = 64;

// FIPS 180-4: the first 32 bits of the fractional parts of the square roots, and of the cube roots, of the first
// primes.
struct Sha256Constants {
  std::array<uint32_t, 8> roots;
  std::array<uint32_t, 64> cube_roots;
  Sha256Constants() {
    auto fraction = [](long double x) { return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L); };
    size_t found = 0;
    for (int n = 2; found < 64; ++n) {
      bool prime = true;
      for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      if (found < 8) roots[found] = fraction(std::sqrt(static_cast<long double>(n)));
      cube_roots[found++] = fraction(std::cbrt(static_cast<long double>(n)));
    }
  }
};

void mix_block(std::array<uint32_t, 8>& state, const unsigned char* block, const Sha256Constants& constants) {
  std::array<uint32_t, 64> w;
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
           block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    auto a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto s = state;
  for (int i = 0; i < 64; ++i) {
    auto [a, b, c, d, e, f, g, h] = s;
    auto one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
               constants.cube_roots[i] + w[i];
    auto two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    s = {one + two, a, b, c, d + one, e, f, g};
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

std::string sha256(std::string_view text) {
  static const Sha256Constants constants;
  std::string padded(text);
  padded += '\x80';
  while (padded.size() % kBlock != kBlock - 8) padded += '\0';
  for (int shift = 56; shift >= 0; shift -= 8)
    padded += static_cast<char>(static_cast<uint64_t>(text.size()) * 8 >> shift);
  auto state = constants.roots;
  for (size_t at = 0; at < padded.size(); at += kBlock) {
    mix_block(state, reinterpret_cast<const unsigned char*>(padded.data() + at), constants);
  }
  std::string digest;
  for (auto word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  }
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string inner = key.size() > kBlock ? sha256(key) : std::string(key);
  inner.resize(kBlock, '\0');
  auto outer = inner;
  for (auto& c : inner) c ^= 0x36;
  for (auto& c : outer) c ^= 0x5c;
  return sha256(outer + sha256(inner + std::string(text)));
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    auto got = getrandom(bytes.data() + done, count - done, 0);
    TORCH_CHECK(got > 0 || errno == EINTR, "[init] no random bytes: ", std::strerror(errno), ".");
    if (got > 0) done += got;
  }
  return bytes;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char c : bytes) text.append(1, "0123456789abcdef"[c >> 4]).append(1, "0123456789abcdef"[c & 15]);
  return text;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

std::string job_secret() {
  auto* text = getenv("INTARSIA_SECRET");
  return text ? text : "";
}

}  // namespace intarsia
