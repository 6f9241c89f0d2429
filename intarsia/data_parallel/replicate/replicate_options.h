#pragma once
// The options of replicate.

#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace intarsia {

struct ReplicateOptions {
  double bucket_cap_mb = 25;   // gradients are sent together up to this size, in MiB
  double first_bucket_mb = 1;  // the first ones, so that something is sent early
  bool gradient_as_bucket_view =
      false;  // gradients live in the buckets: no copies, and memory for them once instead of twice
  bool find_unused_parameters = false;  // a parameter may get no gradient; its gradient is the average with zeros then
  bool static_graph = false;  // every step gives gradients as the first one does; some may come several times, or never
  bool broadcast_buffers = true;  // after each step, buffers are those of the first rank
  bool init_sync = true;          // parameters and buffers are taken from the first rank at the start
  std::vector<torch::nn::Module*> ignored_modules;
  std::vector<at::Tensor> ignored_parameters;
};

}  // namespace intarsia
