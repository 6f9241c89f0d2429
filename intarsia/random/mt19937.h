#pragma once
// Reads the stream of LibTorch's CPU generator, MT19937, from any position.

#include <cstdint>

#include <ATen/core/MT19937RNGEngine.h>

namespace intarsia {

// Note [Places in the stream]
// The generator makes 624 words at a time, from the 624 before them. Each word is tempered when it is drawn, one word
// for a number of 32 bits. The words satisfy a linear recurrence over the field of two elements, so a word n positions
// further is a sum of nearby words, and x^n modulo the characteristic polynomial of the recurrence says of which.
using Mt19937State = at::mt19937_data_pod;

// Moves the state as drawing `count` numbers of 32 bits would, to the last bit.
void advance(Mt19937State& state, uint64_t count);

// The next `count` words before they are tempered; moves the state past them.
void read_words(Mt19937State& state, uint32_t* words, uint64_t count);

// A state whose next numbers are made of the given words, 624 at most, which are not tempered yet.
void give_words(Mt19937State& state, const uint32_t* words, int count);

// How many numbers have been drawn, 624 at most, since it was seeded.
int drawn_since_seeding(const Mt19937State& state);

}  // namespace intarsia
