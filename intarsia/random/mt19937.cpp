#include "intarsia/random/mt19937.h"

#include <algorithm>
#include <cstring>

#include "intarsia/random/jump.h"

namespace intarsia {
namespace {

constexpr uint64_t kWords = at::MERSENNE_STATE_N;
// A jump costs as much as running this far.
constexpr uint64_t kJumpFrom = 5'000'000 / kWords;

void advance_blocks(Mt19937State& state, uint64_t blocks) {
  if (blocks >= kJumpFrom) return jump_blocks(state.state_.data(), blocks);
  for (; blocks > 0; --blocks) next_block(state.state_.data());
}

}  // namespace

void advance(Mt19937State& state, uint64_t count) {
  auto left = static_cast<uint64_t>(state.left_) - 1;  // of this block
  if (count > left) {
    count -= left;
    auto blocks =
        (count + kWords - 1) / kWords;  // a block that is used up stays until a number of the next one is drawn
    advance_blocks(state, blocks);
    count -= (blocks - 1) * kWords;
    state.next_ = 0;
    state.left_ = kWords + 1;
  }
  state.next_ += count;
  state.left_ -= static_cast<int>(count);
}

void read_words(Mt19937State& state, uint32_t* words, uint64_t count) {
  while (count > 0) {
    if (state.left_ == 1) {
      next_block(state.state_.data());
      state.next_ = 0;
      state.left_ = kWords + 1;
    }
    auto some = std::min(count, static_cast<uint64_t>(state.left_) - 1);
    std::memcpy(words, state.state_.data() + state.next_, some * sizeof *words);
    advance(state, some);
    words += some;
    count -= some;
  }
}

void give_words(Mt19937State& state, const uint32_t* words, int count) {
  std::memcpy(state.state_.data(), words, count * sizeof *words);
  state.next_ = 0;
  state.left_ = count + 1;
}

int drawn_since_seeding(const Mt19937State& state) { return static_cast<int>(state.next_); }

}  // namespace intarsia
