// Ranks that are threads of one process: each has an engine of its own, and all of them share every cache of the
// library.

#include <gtest/gtest.h>

#include <thread>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "intarsia/job/engines.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/compare.h"

namespace intarsia::job_threads_as_ranks_test {
namespace {

// Runs `body(mesh)` on n threads, each of them a rank of one world.
template <class Body>
void on_threads(int64_t n, Body body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(n);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      auto* engine = choose_engine("gloo")({rank, n, store, "lo", std::chrono::seconds(60)})
                         .release();  // worlds live until the process ends
      WorldScope scope(*engine);
      try {
        body(init_device_mesh(at::kCPU, {n}));
        engine->barrier();
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
      engine->close();
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& error : errors) EXPECT_EQ(error, "");
}

at::Tensor wave(at::IntArrayRef shape, double step) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).mul(step).sin().reshape(shape);
}

// Two steps of a small model; returns its first weight.
template <class Lay>
at::Tensor train(Lay lay) {
  auto first = lay(wave({6, 8}, 0.7), Shard(1)).requires_grad_(),
       second = lay(wave({8, 3}, 0.3), Shard(0)).requires_grad_();
  torch::optim::AdamW optimizer({first, second}, torch::optim::AdamWOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    auto hidden = at::gelu(at::layer_norm(at::mm(lay(wave({5, 6}, 0.9), Replicate()), first), {8}));
    at::cross_entropy_loss(at::mm(hidden, second), lay(at::arange(5) % 3, Replicate())).backward();
    optimizer.step();
  }
  return first.detach();
}

TEST(ThreadsAsRanks, TrainAsOneDeviceDoes) {
  auto expected = train([](const at::Tensor& x, const Placement&) { return x.clone(); });
  for (int64_t n : {2, 3}) {
    on_threads(n, [&](const DeviceMesh& mesh) {
      auto trained = train([&](const at::Tensor& x, const Placement& p) { return distribute_tensor(x, mesh, {p}); });
      EXPECT_EQ(difference(full_tensor(trained), expected, 1e-9), "");
    });
  }
}

TEST(ThreadsAsRanks, MoveTensorsInEveryWay) {
  auto whole = wave({5, 4, 3}, 0.11);
  on_threads(3, [&](const DeviceMesh& mesh) {
    std::vector<Placement> placements = {Replicate(), Shard(0), Shard(1), StridedShard(2, 2), Partial()};
    for (auto& from : placements) {
      for (auto& to : placements) {
        if (is_partial(to)) continue;
        auto x = distribute_tensor(whole, mesh, {from});
        auto now = redistribute(x, {to}), later = redistribute(x, {to}, /*async_op=*/true);
        if (from != to) to_local(x).mul_(3);
        EXPECT_EQ(difference(full_tensor(later) + full_tensor(now), whole * 2, 1e-12), "")
            << str(from) << " to " << str(to);
      }
    }
  });
}

TEST(ThreadsAsRanks, ReadViewsAndReductionsThatAreRemembered) {
  auto whole = wave({6, 5}, 0.2);
  on_threads(3, [&](const DeviceMesh& mesh) {
    auto x = distribute_tensor(whole, mesh, {Shard(0)}), sum = distribute_tensor(whole, mesh, {Partial()});
    auto row = x.select(0, 4);
    for (int round = 1; round < 4; ++round) {
      to_local(x).mul_(2), to_local(sum).mul_(2);
      EXPECT_EQ(difference(full_tensor(row), whole[4] * (1 << round), 1e-12), "");
      EXPECT_EQ(difference(full_tensor(sum.clamp(-1, 9)), (whole * (1 << round)).clamp(-1, 9), 1e-12), "");
      EXPECT_EQ(difference(full_tensor(at::softmax(x, 0)), at::softmax(whole * (1 << round), 0), 1e-12), "");
    }
  });
}

}  // namespace
}  // namespace intarsia::job_threads_as_ranks_test
