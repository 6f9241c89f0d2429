#pragma once
// A sample through dispatch beside the plain op: values and gradients.

#include <vector>

#include "tests/rules/harness.h"

namespace intarsia {

// The sample's op on other tensors.
std::vector<at::Tensor> call(const SampleCall& sample, const std::vector<at::Tensor>& tensors);

// The sample's tensors, cut over the mesh as the placements say, one for each.
std::vector<at::Tensor> laid_out(const SampleCall& sample, const DeviceMesh& mesh, const Placements& placements,
                                 bool gaps = false);

// What is unlike, beside the largest value; empty if nothing is.
std::string scaled_difference(const at::Tensor& actual, const at::Tensor& expected);

// Expects the values and the gradients of the plain op from tensors that lie as the placements say, in memory that has
// gaps if asked for.
void compare(const SampleCall& sample, const DeviceMesh& mesh, const Placements& placements, bool values, bool gradient,
             bool gaps = false);

// Every row of the sample's rule, those along a cut included.
Rows all_rows(const SampleCall& sample, const Rule& rule);

}  // namespace intarsia
