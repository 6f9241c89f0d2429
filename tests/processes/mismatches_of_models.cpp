#include "tests/processes/mismatches_of_models.h"

#include <exception>
#include <thread>

#include <torch/torch.h>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/intarsia.h"
#include "intarsia/job/init.h"

namespace intarsia {
namespace {

DeviceMesh line() { return init_device_mesh(at::kCPU, {world_size()}, {"tp"}); }

void gather_some(const Axis& axis) {
  axis.all_gather({at::ones({2})}, {at::empty({2 * axis.size()})}, {std::vector<int64_t>(axis.size(), 2)});
}

// A layer cut along what it sums over: its result is a sum that is pending.
at::Tensor layer(int64_t batch, at::ScalarType type = at::kFloat) {
  auto mesh = line();
  auto weight = from_local(at::ones({6, 6 / world_size()}, type), mesh, {Shard(1)});
  auto x = from_local(at::ones({batch, 6}, type), mesh, {Replicate()});
  return at::linear(x, weight);
}
void forward(int64_t batch, at::ScalarType type = at::kFloat) { redistribute(layer(batch, type), {Replicate()}); }
void forward_to(Placement to) { redistribute(layer(6), {to}); }

torch::nn::Sequential replicated() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  replicate(*model, line(), ReplicateOptions());
  return model;
}
torch::nn::Sequential sharded() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  for (auto& child : model->children()) fully_shard(*child, line());
  return model;
}
at::Tensor loss_of(torch::nn::Sequential& model) { return model->forward(torch::ones({2, 8})).square().mean(); }

void train_replicated(int backwards) {
  auto model = replicated();
  for (int i = 0; i < backwards; ++i) loss_of(model).backward();
  gather_some(Axis::of(line(), 0));
}

void train_as(at::ScalarType dtype) {
  auto model = replicated();
  model->to(dtype);
  model->forward(torch::ones({2, 8}, dtype)).square().mean().backward();
}

void train_sharded(int passes, bool backward = true) {
  auto model = sharded();
  for (int i = 0; i < passes; ++i) {
    auto loss = loss_of(model);
    if (backward) loss.backward();
  }
  gather_some(Axis::of(line(), 0));
}

// Gradients of parameters that are cut: their norm takes a collective.
void step(double clip, bool steps = true) {
  auto mesh = line();
  auto weight = distribute_tensor(at::ones({6, 6}), mesh, {Shard(0)}).detach().requires_grad_();
  auto x = distribute_tensor(at::ones({3, 6}), mesh, {Replicate()});
  at::linear(x, weight).pow(2).sum().backward();
  torch::optim::SGD optimizer({weight}, 0.1);
  if (clip) torch::nn::utils::clip_grad_norm_({weight}, clip);
  if (steps) optimizer.step();
  full_tensor(steps ? weight : weight.grad().sum());
}

// Rank 1 uses a mesh of another order; both were used before.
void on_mesh(bool other) {
  DeviceMesh turned(at::kCPU, {world_size()}, {2, 1, 0}, {"turned"});
  Axis::of(turned, 0).all_reduce({at::ones({1})}, ReduceOp::sum);
  Axis::of(other ? turned : line(), 0).all_reduce({at::ones({4})}, ReduceOp::sum);
}

// Two threads, each with a line of its own. That of the other line ends well.
void in_threads(bool other) {
  DeviceMesh turned(at::kCPU, {world_size()}, {2, 1, 0}, {"turned"});
  auto& mine = Axis::of(line(), 0);
  auto& yours = Axis::of(turned, 0);
  std::exception_ptr beside;
  std::thread second([&] {
    try {
      for (int i = 0; i < 50; ++i) yours.all_reduce({at::ones({64})}, ReduceOp::sum);
    } catch (...) {
      beside = std::current_exception();
    }
  });
  std::exception_ptr error;
  try {
    for (int i = 0; i < 10; ++i) mine.all_reduce({at::ones({4})}, ReduceOp::sum);
    mine.all_reduce({at::ones({4})}, other ? ReduceOp::max : ReduceOp::sum);
  } catch (...) {
    error = std::current_exception();
  }
  second.join();
  TORCH_CHECK(!beside, "the other line failed, too");
  if (error) std::rethrow_exception(error);
}

}  // namespace

std::vector<Mismatch> mismatches_of_models() {
  return {
      {"batch in forward", [](auto&) { forward(3); }, [](auto&) { forward(4); }},
      {"dtype in forward", [](auto&) { forward(3); }, [](auto&) { forward(3, at::kDouble); }},
      {"layout in forward", [](auto&) { forward_to(Replicate()); }, [](auto&) { forward_to(Shard(0)); }},
      {"cut in forward", [](auto&) { forward_to(Shard(0)); }, [](auto&) { forward_to(Shard(1)); }},
      {"skipped in forward", [](auto& a) { forward(3), gather_some(a); }, [](auto& a) { gather_some(a); }},
      {"doubled in forward", [](auto& a) { forward(3), gather_some(a); },
       [](auto& a) { forward(3), forward(3), gather_some(a); }},
      {"skipped backward", [](auto&) { train_replicated(1); }, [](auto&) { train_replicated(0); }},
      {"doubled backward", [](auto&) { train_replicated(1); }, [](auto&) { train_replicated(2); }},
      {"dtype of a replica", [](auto&) { train_as(at::kFloat); }, [](auto&) { train_as(at::kDouble); }},
      {"skipped sharded backward", [](auto&) { train_sharded(1); }, [](auto&) { train_sharded(1, false); }},
      {"doubled sharded pass", [](auto&) { train_sharded(1); }, [](auto&) { train_sharded(2); }},
      {"clipped in the optimizer", [](auto&) { step(1); }, [](auto&) { step(0); }},
      {"skipped in the optimizer", [](auto&) { step(0); }, [](auto&) { step(0, false); }},
      {"mesh", [](auto&) { on_mesh(false); }, [](auto&) { on_mesh(true); }, true},
      {"threads", [](auto&) { in_threads(false); }, [](auto&) { in_threads(true); }},
  };
}

}  // namespace intarsia
