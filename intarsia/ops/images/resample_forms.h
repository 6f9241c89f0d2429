#pragma once
// What ops that resample images return, where the plain op cannot tell without data, or takes long to.

#include <functional>
#include <vector>

#include "intarsia/rules/rule.h"

namespace intarsia {

using Forms = std::function<std::vector<TensorForm>(const OpCall&)>;

Forms adaptive_form(size_t image_dims);

// LibTorch has no shapes for reflection_pad2d without data.
Forms reflected_form(size_t image_dims);

// The size of a resized image is an argument. In Python the plain op would be asked by way of a decomposition, which
// takes long. What may not fit is for the plain op to say.
Forms resized_form(size_t image_dims, bool backward);

// A gradient has the shape of the second input.
std::vector<TensorForm> second_form(const OpCall& call);

}  // namespace intarsia
