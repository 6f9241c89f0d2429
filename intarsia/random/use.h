#pragma once
// How many words of the generator's stream a random op uses per element, and in which order.

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

// Note [What an op draws]
// LibTorch's CPU kernels go through a tensor in the order of its memory, and for each unit of elements take a fixed
// number of words from the stream:
// - most ops: one element, one word, or two if they compute in double precision;
// - log_normal_: two elements, four words: the cosine and the sine of one angle. The sine of a last single element
// stays in the generator, and is the first number of the next op that draws so;
// - normal_: the same if the tensor is not contiguous, or has less than 16 elements; else 16 elements of as many
// numbers. If 16 does not divide the size, the last 16 elements are drawn again, from the next words of the stream.
//
// The plain op draws a few numbers to find out how many words it takes: that depends on dtype and range, and a kernel
// of another library may take a single word as the seed of another stream. Everything else is drawn whole.
struct StreamUse {
  int64_t unit = 0;          // elements; 0 if unknown
  int64_t words = 0;         // per unit
  bool keeps_one = false;    // a last single element leaves another one in the generator
  bool draws_again = false;  // the last unit, if it is not full
  bool skips_rest = false;   // then draws nothing for the elements after the last full unit
};

// The use of `op`, whose first argument is the tensor of `dtype` that it fills, contiguous or not. The other arguments
// are numbers.
StreamUse use_of(const c10::OperatorHandle& op, const Stack& arguments, at::ScalarType dtype, bool contiguous);

// Calls an op that fills `target`, with that generator as its last argument.
void fill(const c10::OperatorHandle& op, Stack arguments, const at::Tensor& target, const at::Generator& generator);

// A tensor of `count` elements for the op to fill, in one dim.
at::Tensor room_for(int64_t count, at::ScalarType dtype, bool contiguous);

}  // namespace intarsia
