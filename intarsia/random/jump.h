#pragma once
// Jumps in the stream of MT19937: Haramoto, Matsumoto, Nishimura, Panneton, L'Ecuyer, "Efficient Jump Ahead for
// F2-Linear Random Number Generators" (2008). See Note [Places in the stream].

#include <array>
#include <cstdint>
#include <memory>

namespace intarsia {

// A polynomial over the field of two elements, of a degree below that of the recurrence: bit i is the coefficient of
// x^i.
using JumpPolynomial = std::array<uint64_t, 312>;

// x^n modulo the characteristic polynomial of MT19937. The last results are cached, since shapes recur.
std::shared_ptr<const JumpPolynomial> power_of_x(uint64_t n);

// Moves to the block of 624 words that follows, or that is `blocks` (at least one) further.
void next_block(uint32_t* words);
void jump_blocks(uint32_t* words, uint64_t blocks);

}  // namespace intarsia
