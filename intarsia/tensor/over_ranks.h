#pragma once
// One number from all ranks: the mean of their losses, the sum of their counts.
//
//   print_once("loss ", mean_over_ranks(loss));
//
// Every rank of the current world (or of `mesh`) calls it with its number, and all get the same result. A tensor has
// one element; it may be plain, per-rank (in a simulation), or distributed, which is one number for all ranks of its
// mesh. In a simulation a plain number is that of every rank.

#include <optional>

#include <ATen/core/Tensor.h>

#include "intarsia/core/mesh.h"

namespace intarsia {

double mean_over_ranks(double mine, const std::optional<DeviceMesh>& mesh = std::nullopt);
double mean_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh = std::nullopt);
double sum_over_ranks(double mine, const std::optional<DeviceMesh>& mesh = std::nullopt);
double sum_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh = std::nullopt);
double max_over_ranks(double mine, const std::optional<DeviceMesh>& mesh = std::nullopt);
double max_over_ranks(const at::Tensor& mine, const std::optional<DeviceMesh>& mesh = std::nullopt);

}  // namespace intarsia
