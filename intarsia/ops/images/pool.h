#pragma once
// What max pools share: how they may be sharded, and where their indices point.

#include "intarsia/ops/images/side.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// Every dim may be sharded, in all tensors alike; those of the image by means of `run`. `linear`: averages.
Rule pool_rule(int64_t image_dims, bool linear, std::function<void(JointCall&)> run);

// Whether a tensor holds images, a batch of them or one, and no dim but the batch is empty.
bool has_image(const TensorForm& form, int64_t image_dims);

// The whole image: the frame in which indices are numbered.
std::vector<Interval> whole_frame(const Sides& sides);

// The gradient of a max pool (tensors: gradient, image, indices): each element goes where its index points.
void return_to_indices(JointCall& run, const Sides& sides);

}  // namespace intarsia
