#pragma once
// Which input positions a run of output positions reads, along one dim. Pure arithmetic.

#include "intarsia/ops/images/rows.h"

namespace intarsia {

// A sliding window along one dim. Transposed: input position i writes output positions
// i * stride - padding + k * dilation, k < kernel; else output position o reads input positions of that form.
struct Window {
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  bool transposed = false;

  int64_t reach() const { return (kernel - 1) * dilation + 1; }
};

// The positions that outputs `out` read. They may extend beyond the image, into the padding. Empty for no outputs.
// Transposed: positions that may write into `out`.
Interval read_by(const Window& window, Interval out);

// Transposed only: the output positions that inputs `in` write, before any are cropped.
Interval written_by(const Window& window, Interval in);

// The part of a run that is in [0, size). The rest is padding, so a run that is wholly in the padding leaves an empty
// one.
struct Clipped {
  Interval inside;
  int64_t before, after;  // how many positions of padding on either side
};
Clipped clip(Interval run, int64_t size);

}  // namespace intarsia
