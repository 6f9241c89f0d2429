// Shards a matrix product over four ranks in two ways and looks at the shards.
//
// Run it by itself, and this process plays all four ranks:
//   build/examples/1_shard_a_matmul
// or as four processes, where every rank prints its own shards:
//   intarsia run -n 4 build/examples/1_shard_a_matmul
//
// For each way it prints who holds what of both factors and of the product, the local values, and what had to be
// sent. It ends with an error if a product differs from that of plain tensors.
#include <iostream>
#include <optional>

#include <torch/torch.h>

#include "intarsia/intarsia.h"

using intarsia::Placements, intarsia::Shard;

namespace {

// a @ b with both factors distributed; false if the product is wrong.
bool show(const char* title, const torch::Tensor& a, const torch::Tensor& b, const intarsia::DeviceMesh& mesh,
          const Placements& cut_a, const Placements& cut_b) {
  auto left = intarsia::distribute_tensor(a, mesh, cut_a);
  auto right = intarsia::distribute_tensor(b, mesh, cut_b);

  intarsia::CommDebugMode comms;
  auto product = torch::mm(left, right);  // an ordinary LibTorch call
  comms.exit();
  auto whole = intarsia::full_tensor(product);

  std::cout << "=== " << title << "\n"
            << "a: " << intarsia::visualize_sharding(left) << "b: " << intarsia::visualize_sharding(right)
            << "a @ b: " << intarsia::visualize_sharding(product) << "\n"
            << product << "\n"
            << "sent during mm: " << (comms.text().empty() ? "nothing\n" : comms.text()) << std::endl;
  return torch::equal(whole, torch::mm(a, b));
}

}  // namespace

int main() {
  intarsia::init();  // joins the ranks that a launcher started; alone, a world of one
  std::optional<intarsia::Simulation> simulation;
  if (intarsia::current_world().size() == 1) simulation.emplace(4);
  auto mesh = intarsia::init_device_mesh(torch::kCPU, {4}, {"tp"});

  // Small whole numbers: every order of adding gives the same sum, so results can be compared exactly.
  auto a = torch::arange(30.f).reshape({5, 6});
  auto b = torch::arange(24.f).reshape({6, 4});

  bool right = show("rows of a: the product is cut as a is", a, b, mesh, {Shard(0)}, {intarsia::Replicate()});
  right &= show("the dim that is summed: every rank holds a term of the product", a, b, mesh, {Shard(1)}, {Shard(0)});
  std::cout << (right ? "both products are right" : "A PRODUCT IS WRONG") << std::endl;
  return right ? 0 : 1;
}
