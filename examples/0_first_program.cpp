// The first program of the README. Run it:
//   build/examples/0_first_program
// It prints which ranks hold what of a product, the gradient of the second factor, and what was sent.
#include <torch/torch.h>
#include <iostream>
#include "intarsia/intarsia.h"
using namespace intarsia;

int main() {
  auto world = simulate(4);  // this process plays four ranks
  auto mesh = init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
  auto x = distribute_tensor(torch::ones({5, 3}), mesh, {Shard(0), Replicate()});
  auto w = distribute_tensor(torch::ones({3, 4}).requires_grad_(), mesh, {Replicate(), Shard(1)});
  CommDebugMode comms;
  auto y = torch::relu(torch::mm(x, w));  // ordinary LibTorch calls
  y.sum().backward();
  std::cout << visualize_sharding(y) << full_tensor(w.grad()) << "\n" << comms.table();
}
