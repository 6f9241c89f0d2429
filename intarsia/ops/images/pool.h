#pragma once
// What all pools by maximum share: how they may be cut, and where their indices point.

#include "intarsia/ops/images/side.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// Every dim may be cut, in all tensors alike; those of the image along `run`. `linear`: averages.
Rule pool_rule(int64_t image_dims, bool linear, std::function<void(JointCall&)> run);

// Whether a tensor holds images, a batch of them or one, and nothing of it is empty but the batch.
bool has_image(const TensorForm& form, int64_t image_dims);

// The whole image: the frame in which indices are numbered.
std::vector<Interval> whole_frame(const Sides& sides);

// The gradient of a pool by maximum (tensors: gradient, image, indices): it goes to where the indices point.
void return_to_indices(JointCall& run, const Sides& sides);

}  // namespace intarsia
