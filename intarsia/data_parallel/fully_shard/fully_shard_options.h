#pragma once
// The options of fully_shard.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace intarsia {

struct MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype;   // of the whole, in forward and backward; shards keep theirs
  std::optional<at::ScalarType> reduce_dtype;  // in which gradients are added up; default: their own
  std::optional<at::ScalarType> output_dtype;  // of forward's results; needs a module with hooks
  bool cast_forward_inputs = true;             // to param_dtype, floating-point ones; in a module with hooks
};

struct FullyShardOptions {
  // Whether the whole is freed after forward and gathered again in backward. Default: yes, except for the outermost
  // group, which backward begins with.
  std::optional<bool> reshard_after_forward;
  // Between forward and backward each rank keeps so large a part that this many ranks (a divisor of their number) have
  // the whole together: backward gathers among these. For ranks of one host.
  std::optional<int64_t> reshard_to;
  // Chooses the sharded dim; default: 0, and scalars stay whole on every rank.
  std::function<std::optional<int64_t>(const std::string& name, const at::Tensor& parameter)> shard_dim;
  MixedPrecisionPolicy mp_policy;
  std::vector<at::Tensor> ignored_parameters;
  bool init_sync = true;          // parameters and buffers are taken from the first rank
  bool broadcast_buffers = true;  // after each step, buffers are those of the first rank
  bool unused_as_zeros = false;   // a parameter that some ranks do not use has zero gradients there, without an error
};

}  // namespace intarsia
