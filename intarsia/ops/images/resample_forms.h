#pragma once
// Result forms of ops that resample images, for which the plain op cannot infer them without data, or takes long.

#include <functional>
#include <vector>

#include "intarsia/rules/rule.h"

namespace intarsia {

using Forms = std::function<std::vector<TensorForm>(const OpCall&)>;

// The form of an adaptive pool's result.
Forms adaptive_form(size_t image_dims);

// LibTorch has no shapes for reflection_pad2d without data.
Forms reflected_form(size_t image_dims);

// The size of a resized image is an argument. In Python, the plain op would infer the form through a decomposition,
// which takes long. If arguments do not match, the plain op raises its error.
Forms resized_form(size_t image_dims, bool backward);

// A gradient has the shape of the second input.
std::vector<TensorForm> second_form(const OpCall& call);

}  // namespace intarsia
