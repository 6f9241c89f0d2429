// Gradients of parameters that some passes do not use: what PyTorch's DistributedDataParallel gives.

#include "tests/data_parallel/models.h"

namespace intarsia::data_parallel_replicate_unused_test {
namespace {

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(int64_t size) {
    always = register_parameter("always", at::ones({size}, at::kDouble));
    sometimes = register_parameter("sometimes", at::ones({size}, at::kDouble));
  }
  at::Tensor always, sometimes;
};
TORCH_MODULE(Two);

enum class Users { none, first, all };
enum class Reset { never, to_none, in_place };

struct Pass {
  Users users;
  bool syncs;
};
using Passes = std::vector<Pass>;

// The rule of DDP: a rank sends the gradient that it has, zero if it has none; all get the average if any rank has used
// the parameter since the last one.
struct Expected {
  std::vector<std::optional<double>> grads;
  std::vector<bool> used;

  explicit Expected(int64_t n) : grads(n), used(n) {}
  void reset(Reset how) {
    for (auto& grad : grads) {
      if (how == Reset::to_none) grad.reset();
      if (how == Reset::in_place && grad) grad = 0;
    }
    if (how == Reset::to_none) used.assign(used.size(), false);
  }
  void run(const Pass& pass, int64_t factor) {
    for (size_t rank = 0; rank < grads.size(); ++rank) {
      if (pass.users == Users::none || (pass.users == Users::first && rank > 0)) continue;
      grads[rank] = grads[rank].value_or(0) + static_cast<double>(factor * sign_of(rank));
      used[rank] = true;
    }
    if (!pass.syncs || std::count(used.begin(), used.end(), true) == 0) return;
    double sum = 0;
    for (auto& grad : grads) sum += grad.value_or(0);
    grads.assign(grads.size(), sum / static_cast<double>(grads.size()));
    used.assign(used.size(), false);
  }
};

at::Tensor signs(const DeviceMesh& mesh) {
  std::vector<double> all;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) all.push_back(static_cast<double>(sign_of(rank)));
  return mine(at::tensor(all, at::kDouble), mesh);
}

void expect_grads(const at::Tensor& grad, const Expected& expected, const DeviceMesh& mesh) {
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    auto& goal = expected.grads[mesh.slots()[slot].rank];
    ASSERT_EQ(grad.defined(), goal.has_value());
    if (!goal) continue;
    ASSERT_TRUE(torch::allclose(value_at(grad, slot), at::full({}, *goal, at::kDouble), 1e-12, 1e-12)) << *goal;
  }
}

void compare(const ReplicateOptions& options, int64_t size, Reset reset, const Passes& passes) {
  auto mesh = all_ranks();
  Two model(size);
  replicate(*model, mesh, options);
  Expected expected(mesh.size());
  for (size_t i = 0; i < passes.size(); ++i) {
    SCOPED_TRACE(c10::str("pass ", i, ", users ", static_cast<int>(passes[i].users), ", syncs ", passes[i].syncs));
    if (reset != Reset::never) model->zero_grad(reset == Reset::to_none);
    expected.reset(reset);
    bool uses = passes[i].users == Users::all || (passes[i].users == Users::first && mesh.slots()[0].rank == 0);
    std::optional<NoSync> no_sync;
    if (!passes[i].syncs) no_sync.emplace(*model);
    auto loss = model->always.sum();
    if (uses) loss = loss + (model->sometimes * (signs(mesh) * static_cast<double>(i + 1))).sum();
    loss.backward();
    expected.run(passes[i], static_cast<int64_t>(i + 1));
    expect_grads(model->sometimes.grad(), expected, mesh);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Only real ranks can use different parameters.
std::vector<Users> users_here() {
  if (process_world()) return {Users::none, Users::first, Users::all};
  return {Users::none, Users::all};
}

// All ranks use it first; what follows is done in every way, and the last two passes average.
std::vector<Passes> all_passes() {
  std::vector<Passes> all;
  for (auto second : users_here()) {
    for (bool syncs : {true, false}) {
      for (auto third : users_here()) {
        for (auto last : users_here())
          all.push_back({{Users::all, true}, {second, syncs}, {third, true}, {last, true}});
      }
    }
  }
  return all;
}

TEST(ReplicateUnused, GradientsAddUpAsThoseOfDdp) {
  struct Kind {
    bool views;
    int64_t size;  // gradients of the large one are lent, not copied
  };
  for (auto kind : {Kind{false, 1}, Kind{true, 1}, Kind{false, 40000}}) {
    ReplicateOptions options;
    options.find_unused_parameters = true;
    options.gradient_as_bucket_view = kind.views;
    for (auto reset : {Reset::never, Reset::to_none, Reset::in_place}) {
      if (kind.size > 1 && reset != Reset::never) continue;
      for (auto& passes : all_passes()) {
        SCOPED_TRACE(c10::str("views ", kind.views, ", size ", kind.size, ", reset ", static_cast<int>(reset)));
        in_every_world([&] { compare(options, kind.size, reset, passes); });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ReplicateUnused, WhatNobodyUsesKeepsItsBitsInABucket) {
  in_every_world([] {
    auto mesh = all_ranks();
    Two model(3);
    ReplicateOptions options;
    options.find_unused_parameters = options.gradient_as_bucket_view = true;
    replicate(*model, mesh, options);
    (model->always * 0.1 + model->sometimes * 0.1).sum().backward();
    auto before = value_at(model->sometimes.grad(), 0).clone();
    for (int64_t pass = 0; pass < 4; ++pass) model->always.sum().backward();
    EXPECT_TRUE(torch::equal(value_at(model->sometimes.grad(), 0), before));  // 0.1 + 0.1 + 0.1 divided by 3 is not 0.1
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_replicate_unused_test
