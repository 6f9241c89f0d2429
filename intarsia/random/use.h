#pragma once
// How many words of the generator's stream a random op uses per element, and in which order.

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "intarsia/rules/lowering.h"

namespace intarsia {

// Note [What an op draws]
// LibTorch's CPU kernels go through a tensor in the order of its memory, and for each unit of elements take a fixed
// number of words from the stream:
//   most ops            one element, one word, or two where they compute in double precision;
//   log_normal_         two elements, four words: the cosine and the sine of one angle. The sine of a last single
//   element
//                       stays with the generator, and is the first number of the next op that draws so;
//   normal_             the same where the tensor is not contiguous, or has less than 16 elements; else 16 elements of
//   as
//                       many numbers. Where 16 does not divide the size, the last 16 elements are drawn again, from
//                       what follows in the stream.
// How many words is seen by asking the plain op for a few numbers: it depends on dtype and range, and a kernel of
// another library may take a single word as the seed of another stream. Everything else is drawn whole.
struct StreamUse {
  int64_t unit = 0;          // elements; 0 if it is unknown
  int64_t words = 0;         // per unit
  bool keeps_one = false;    // a last single element leaves another one with the generator
  bool draws_again = false;  // the last unit, if it is not full
  bool skips_rest = false;   // then draws nothing for the elements beyond the last full unit
};

// Of `op`, whose first argument is a tensor of `dtype` that is filled, contiguous or not. The other arguments are
// numbers.
StreamUse use_of(const c10::OperatorHandle& op, const Stack& arguments, at::ScalarType dtype, bool contiguous);

// Calls an op that fills `target`, with that generator as its last argument.
void fill(const c10::OperatorHandle& op, Stack arguments, const at::Tensor& target, const at::Generator& generator);

// `count` elements for it to fill, in one dim.
at::Tensor room_for(int64_t count, at::ScalarType dtype, bool contiguous);

}  // namespace intarsia
