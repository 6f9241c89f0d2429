#pragma once
// What all pools by maximum share: how they may be cut, and where their indices point.

#include "intarsia/conv/side.h"
#include "intarsia/conv/spread.h"

namespace intarsia {

// Every dim may be cut, in all tensors alike; with `image` also those of the image. `linear`: averages.
Rule pool_rule(int64_t image_dims, bool image, bool linear);

// The whole image: the frame in which indices are numbered.
std::vector<Interval> whole_frame(const Sides& sides);

// The gradient of a pool by maximum (tensors: gradient, image, indices): it goes to where the indices point.
void return_to_indices(Spread& run, const Sides& sides);

}  // namespace intarsia
