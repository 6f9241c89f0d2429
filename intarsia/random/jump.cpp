#include "intarsia/random/jump.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/MT19937RNGEngine.h>

namespace intarsia {
namespace {

constexpr int kDegree = 19937, kBlock = at::MERSENNE_STATE_N;
constexpr int kTop = kDegree / 64;  // the index of the 64 bits with x^kDegree, the last ones of a JumpPolynomial

// Four words at a time: compilers do not vectorize this.
using Four = uint32_t __attribute__((vector_size(16)));

Four load(const uint32_t* words) {
  Four four;
  std::memcpy(&four, words, sizeof four);
  return four;
}

uint32_t twist(uint32_t u, uint32_t v) {
  return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ (-(v & 1) & at::MATRIX_A);
}
Four twist(Four u, Four v) { return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ (-(v & 1) & at::MATRIX_A); }

// Recomputes words[begin, end) from themselves, the next one, and those that are `far` away.
void renew(uint32_t* words, int begin, int end, int far) {
  int i = begin;
  for (; i + 4 <= end; i += 4) {
    auto four = load(words + i + far) ^ twist(load(words + i), load(words + i + 1));
    std::memcpy(words + i, &four, sizeof four);
  }
  for (; i < end; ++i) words[i] = words[i + far] ^ twist(words[i], words[i + 1]);
}

// Exponents below the highest one. The polynomial is that of Matsumoto and Nishimura (1998), appendix A:
//   (x^624 + x^397) (q^31 + a0 q^30 + ... + a30) + a31,  q = x^623 + x^396,  where a is the matrix's last row.
// It has 135 terms. The second highest is far below the highest, so that 64 bits can be reduced at once.
std::vector<int> make_terms() {
  std::vector<bool> sum(kDegree + 1);
  auto times = [&](int high, int low) {
    for (int i = kDegree; i >= 0; --i) sum[i] = (i >= high && sum[i - high]) != (i >= low && sum[i - low]);
  };
  auto add = [&](int bit) {
    if (at::MATRIX_A >> bit & 1) sum[0] = !sum[0];
  };
  sum[0] = true;
  for (int bit = 0; bit < 31; ++bit) {
    times(at::MERSENNE_STATE_N - 1, at::MERSENNE_STATE_M - 1);
    add(bit);
  }
  times(at::MERSENNE_STATE_N, at::MERSENNE_STATE_M);
  add(31);
  std::vector<int> terms;
  for (int i = 0; i < kDegree; ++i) {
    if (sum[i]) terms.push_back(i);
  }
  return terms;
}

const std::vector<int>& terms() {
  static const auto* terms = new std::vector<int>(make_terms());
  return *terms;
}

// Adds bits * x^place.
void add_at(uint64_t* polynomial, int place, uint64_t bits) {
  auto word = place / 64, shift = place % 64;
  polynomial[word] ^= bits << shift;
  if (shift) polynomial[word + 1] ^= bits >> (64 - shift);
}

// Reduces the `count` words of a polynomial to below the degree, from the top.
void reduce(uint64_t* polynomial, int count) {
  for (int i = count - 1; i > kTop; --i) {
    auto bits = std::exchange(polynomial[i], 0);
    if (!bits) continue;
    for (auto term : terms()) add_at(polynomial, 64 * i - kDegree + term, bits);
  }
  auto bits = polynomial[kTop] >> (kDegree % 64);
  polynomial[kTop] &= (uint64_t(1) << (kDegree % 64)) - 1;
  if (!bits) return;
  for (auto term : terms()) add_at(polynomial, term, bits);
}

// Inserts a zero between any two bits.
uint64_t spread(uint32_t bits) {
  uint64_t x = bits;
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x << 2) & 0x3333333333333333;
  return (x | x << 1) & 0x5555555555555555;
}

void square(JumpPolynomial& p) {
  std::array<uint64_t, 2 * std::tuple_size_v<JumpPolynomial>> squared;
  for (size_t i = 0; i < p.size(); ++i) {
    squared[2 * i] = spread(static_cast<uint32_t>(p[i]));
    squared[2 * i + 1] = spread(p[i] >> 32);
  }
  reduce(squared.data(), squared.size());
  std::copy_n(squared.begin(), p.size(), p.begin());
}

void times_x(JumpPolynomial& p) {
  for (size_t i = p.size() - 1; i > 0; --i) p[i] = p[i] << 1 | p[i - 1] >> 63;
  p[0] <<= 1;
  reduce(p.data(), p.size());
}

JumpPolynomial make_power(uint64_t n) {
  JumpPolynomial power{1};
  for (int bit = std::bit_width(n) - 1; bit >= 0; --bit) {
    square(power);
    if (n >> bit & 1) times_x(power);
  }
  return power;
}

// sum[0, kBlock) += words[0, kBlock).
void add_block(uint32_t* sum, const uint32_t* words) {
  using Many = uint32_t __attribute__((vector_size(32)));
  for (int i = 0; i < kBlock; i += sizeof(Many) / sizeof *sum) {
    Many a, b;
    std::memcpy(&a, sum + i, sizeof a);
    std::memcpy(&b, words + i, sizeof b);
    a ^= b;
    std::memcpy(sum + i, &a, sizeof a);
  }
}

}  // namespace

void next_block(uint32_t* words) {
  constexpr int n = at::MERSENNE_STATE_N, m = at::MERSENNE_STATE_M;
  renew(words, 0, n - m, m);
  renew(words, n - m, n - 1, m - n);
  words[n - 1] = words[m - 1] ^ twist(words[n - 1], words[0]);
}

std::shared_ptr<const JumpPolynomial> power_of_x(uint64_t n) {
  constexpr size_t kKept = 128;
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<uint64_t, std::shared_ptr<const JumpPolynomial>>;
  {
    std::lock_guard lock(*mutex);
    auto found = known->find(n);
    if (found != known->end()) return found->second;
  }
  auto power = std::make_shared<const JumpPolynomial>(make_power(n));
  std::lock_guard lock(*mutex);
  if (known->size() >= kKept) known->clear();
  return known->emplace(n, power).first->second;
}

// Word i of the target block is the sum of words[j + i] over the terms x^j of x^n, where n is the distance. Only one
// bit of the oldest word takes part in the recurrence, so that word is left out, and the distance is one less.
void jump_blocks(uint32_t* words, uint64_t blocks) {
  auto power = power_of_x(blocks * kBlock - 1);
  constexpr int kBlocks = kDegree / kBlock + 2;
  std::vector<uint32_t> near((kBlocks + 1) * kBlock);
  std::copy_n(words, kBlock, near.begin());
  for (int block = 1; block <= kBlocks; ++block) {
    std::copy_n(near.begin() + (block - 1) * kBlock, kBlock, near.begin() + block * kBlock);
    next_block(near.data() + block * kBlock);
  }
  std::fill_n(words, kBlock, 0);
  for (size_t i = 0; i < power->size(); ++i) {
    for (auto bits = (*power)[i]; bits; bits &= bits - 1) {
      add_block(words, near.data() + 64 * i + std::countr_zero(bits) + 1);
    }
  }
}

}  // namespace intarsia
