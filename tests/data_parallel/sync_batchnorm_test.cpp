// Batch norms with the statistics of all ranks: values, gradients and running statistics of one device with all rows.

#include "intarsia/nn/sync_batchnorm.h"

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_sync_batchnorm_test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::BatchNormOptions;

at::Tensor loss_of(torch::nn::Sequential model, const at::Tensor& x) { return model->forward(x).square().mean(); }

// Two identical norms with weights that are not ones.
template <class Norm>
Norm norm_of(BatchNormOptions options) {
  Norm norm(options);
  norm->to(at::kDouble);
  torch::NoGradGuard no_grad;
  for (auto& p : norm->parameters()) p.copy_(torch::sin(torch::arange(p.numel(), at::kDouble) + 1));
  return norm;
}

at::Tensor joined(const at::Tensor& local, const DeviceMesh& mesh) {
  return full_tensor(from_local(local, mesh, {Shard(0)}));
}
bool close(const at::Tensor& a, const at::Tensor& b) { return torch::allclose(a, b, 1e-11, 1e-11); }

template <class Norm>
void compare(BatchNormOptions options, std::vector<int64_t> shape) {
  auto mesh = all_ranks();
  auto norm = norm_of<Norm>(options), plain = norm_of<Norm>(options);
  EXPECT_EQ(convert_sync_batchnorm(norm, mesh), 1);
  for (int64_t step = 0; step < 3; ++step) {
    auto weights = inputs(step + 5, shape), all = inputs(step, shape).requires_grad_();
    auto x = mine(inputs(step, shape), mesh).requires_grad_();
    auto expected = plain->forward(all);
    auto y = norm->forward(x);
    EXPECT_TRUE(close(joined(y.detach(), mesh), expected));
    (expected * weights).sum().backward(), (y * mine(weights, mesh)).sum().backward();
    EXPECT_TRUE(close(joined(x.grad(), mesh), all.grad()));
    for (size_t i = 0; i < plain->parameters().size(); ++i) {  // of this rank's loss: replicate averages them
      auto sum = full_tensor(from_local(norm->parameters()[i].grad(), mesh, {Partial()}));
      EXPECT_TRUE(close(sum, plain->parameters()[i].grad())) << i;
    }
    norm->zero_grad(), plain->zero_grad();
    expect_same_tensors(*norm, *plain, 1e-11);  // the running statistics
  }
  norm->eval(), plain->eval();
  auto y = norm->forward(mine(inputs(9, shape), mesh)).detach();
  EXPECT_TRUE(close(joined(y, mesh), plain->forward(inputs(9, shape))));
}

TEST(SyncBatchNorm, IsTheBatchNormOfAllRows) {
  in_every_world([] {
    compare<BatchNorm1d>(BatchNormOptions(5), {48, 5});
    compare<BatchNorm1d>(BatchNormOptions(3), {24, 3, 4});
    compare<BatchNorm2d>(BatchNormOptions(4), {24, 4, 3, 2});
    compare<BatchNorm3d>(BatchNormOptions(2), {24, 2, 2, 3, 2});
    compare<BatchNorm2d>(BatchNormOptions(4).affine(false), {24, 4, 3, 2});
    compare<BatchNorm2d>(BatchNormOptions(4).track_running_stats(false), {24, 4, 3, 2});
    compare<BatchNorm2d>(BatchNormOptions(4).momentum(std::nullopt), {24, 4, 3, 2});
    compare<BatchNorm2d>(BatchNormOptions(4).momentum(0.3).eps(0.1), {24, 4, 3, 2});
  });
}

// Rank r has offset + factor * r rows.
void compare_rows(int64_t offset, int64_t factor, BatchNormOptions options = BatchNormOptions(3)) {
  in_every_world([&] {
    auto mesh = all_ranks();
    auto before = [&](int64_t rank) { return offset * rank + factor * rank * (rank - 1) / 2; };
    auto n = mesh.size(), rows = before(n);
    if (rows < 2) return;
    auto of_rank = [&](const at::Tensor& all, int64_t rank) {
      return all.narrow(0, before(rank), offset + factor * rank);
    };
    auto norm = norm_of<BatchNorm1d>(options), plain = norm_of<BatchNorm1d>(options);
    convert_sync_batchnorm(norm, mesh);
    auto all = inputs(0, {rows, 3}).requires_grad_();
    Shards locals;
    for (auto& slot : mesh.slots()) locals.push_back(of_rank(inputs(0, {rows, 3}), slot.rank).clone());
    auto x = (locals.size() == 1 ? locals[0] : per_rank(locals)).requires_grad_();
    // The op that forward calls, after it has looked at one size of all simulated ranks.
    auto y =
        torch::batch_norm(x, norm->weight, norm->bias, norm->running_mean, norm->running_var, true, 0.1, 1e-5, false);
    auto expected = plain->forward(all);
    if (norm->num_batches_tracked.defined()) norm->num_batches_tracked += 1;
    expected.pow(3).sum().backward(), y.pow(3).sum().backward();
    for (size_t slot = 0; slot < locals.size(); ++slot) {
      auto rank = mesh.slots()[slot].rank;
      EXPECT_TRUE(close(value_at(y.detach(), slot), of_rank(expected, rank)));
      EXPECT_TRUE(close(value_at(x.grad(), slot), of_rank(all.grad(), rank)));
    }
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      auto sum = full_tensor(from_local(norm->parameters()[i].grad(), mesh, {Partial()}));
      EXPECT_TRUE(close(sum, plain->parameters()[i].grad())) << i;
    }
    expect_same_tensors(*norm, *plain, 1e-11);
  });
}

TEST(SyncBatchNorm, RanksMayHaveDifferentNumbersOfRowsAlsoOneOrNone) {
  compare_rows(2, 1);
  compare_rows(1, 0);
  compare_rows(0, 2);
  compare_rows(0, 2, BatchNormOptions(3).affine(false));
  compare_rows(1, 0, BatchNormOptions(3).track_running_stats(false));
}

// Twenty steps of replicate or fully_shard are those of one device with all rows.
template <class MakeParallel>
void compare_training(MakeParallel make) {
  auto mesh = all_ranks();
  auto model = cnn(), plain = cnn();
  make(model, mesh);
  torch::optim::SGD own(model->parameters(), 0.05), goal(plain->parameters(), 0.05);
  auto batch_of = [](int64_t step) { return inputs(step, {24, 2, 6, 6}); };
  expect_same_losses({own, goal}, model, plain, loss_of, batch_of, mesh, 1e-10);
  expect_same_tensors(*model, *plain, 1e-9);
}

TEST(SyncBatchNorm, TrainsUnderReplicateAsOneDeviceDoes) {
  in_every_world([] {
    compare_training([](auto model, auto& mesh) {
      EXPECT_EQ(convert_sync_batchnorm(model, mesh), 2);
      replicate(model, mesh);
    });
    compare_training([](auto model, auto& mesh) {
      replicate(model, mesh);
      convert_sync_batchnorm(model, mesh);
    });
  });
}

TEST(SyncBatchNorm, TrainsUnderFullyShardAsOneDeviceDoes) {
  in_every_world([] {
    compare_training([](auto model, auto& mesh) {
      convert_sync_batchnorm(model, mesh);
      fully_shard(*model, mesh);
    });
    compare_training([](auto model, auto& mesh) {
      fully_shard(*model, mesh);
      convert_sync_batchnorm(model, mesh);
    });
  });
}

TEST(SharedBuffers, UnderFullyShardAreThoseOfTheFirstRank) {
  in_every_world([] {
    for (bool by_layer : {false, true}) {
      auto mesh = all_ranks();
      auto model = cnn(), first = cnn();
      auto rank = mesh.slots()[0].rank;
      for (auto& buffer : model->buffers()) buffer.add_(rank);  // taken from the first rank
      for (size_t i : {0, 1, 3, 4}) {
        if (by_layer) fully_shard(*model[i], mesh);
      }
      fully_shard(*model, mesh);
      for (int64_t step = 0; step < 3; ++step) {
        loss_of(model, mine(inputs(step, {24, 2, 6, 6}), mesh)).backward();
        first->forward(inputs(step, {24, 2, 6, 6}).chunk(mesh.size())[0]);
        for (auto& item : first->named_buffers()) {
          auto own = model->named_buffers()[item.key()];
          for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
            EXPECT_TRUE(close(value_at(own, slot).to(at::kDouble), item.value().to(at::kDouble))) << item.key();
          }
        }
      }
    }
  });
}

TEST(SharedBuffers, OfFrozenLayersAreThoseOfTheFirstRank) {
  for (bool by_layer : {false, true}) {
    auto world = simulate(2);
    auto mesh = all_ranks();
    auto model = cnn();
    for (size_t i : {0, 1, 3, 4}) {
      for (auto& parameter : model[i]->parameters()) parameter.set_requires_grad(false);
      if (by_layer) fully_shard(*model[i], mesh);
    }
    fully_shard(*model[6], mesh);
    fully_shard(*model, mesh);
    model->forward(mine(inputs(0, {8, 2, 6, 6}), mesh)).square().mean().backward();
    for (auto& item : model->named_buffers()) {
      EXPECT_TRUE(torch::equal(value_at(item.value(), 0), value_at(item.value(), 1))) << item.key();
    }
  }
}

TEST(SharedBuffers, ThatAreConstantAreNotSent) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto model = small_llama(false);
  fully_shard(*model, mesh);
  auto tokens = mine(inputs(0, {4, 5}).mul(1e4).to(at::kLong).remainder(17), mesh);
  auto loss = model->forward(tokens).square().mean();
  CommDebugMode comms;
  loss.backward();
  EXPECT_EQ(comms.get_comm_counts()["broadcast"], 0);
}

TEST(SyncBatchNorm, SendsAFewNumbersPerChannel) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto norm = norm_of<BatchNorm2d>(BatchNormOptions(4));
  convert_sync_batchnorm(norm, mesh);
  auto x = mine(inputs(0, {8, 4, 3, 3}), mesh).requires_grad_();
  CommDebugMode comms;
  norm->forward(x).sum().backward();
  EXPECT_EQ(comms.text(),
            "all_reduce(sum) dp 40B\nall_reduce(sum) dp 32B\nall_reduce(sum) dp 32B\nall_reduce(sum) dp 40B\n");
}

TEST(SyncBatchNorm, OtherNormsAndCopiesStayAsTheyAre) {
  auto world = simulate(2);
  auto mesh = all_ranks();
  auto norm = norm_of<BatchNorm1d>(BatchNormOptions(3)), other = norm_of<BatchNorm1d>(BatchNormOptions(3));
  convert_sync_batchnorm(norm, mesh);
  auto copy = BatchNorm1d(std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone()));
  auto x = mine(inputs(0, {8, 3}), mesh);
  CommDebugMode comms;
  other->forward(x), copy->forward(x);
  EXPECT_EQ(comms.text(), "");
}

TEST(SyncBatchNorm, RefusesWhatItCannotTellFromOthers) {
  auto world = simulate(4);
  auto grid = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { convert_sync_batchnorm(cnn(), grid); }),
      "[convert_sync_batchnorm] expects a mesh of one axis, not DeviceMesh(cpu, dp=2, tp=2). Take a slice of it by "
      "name, or flatten it.");
  BatchNorm1d bare(BatchNormOptions(3).affine(false).track_running_stats(false));
  auto text = error_text<c10::ValueError>([&] { convert_sync_batchnorm(bare, all_ranks()); });
  EXPECT_EQ(text,
            "[convert_sync_batchnorm] torch::nn::BatchNorm1dImpl has neither a weight nor running statistics, by which "
            "its calls could be recognized. Set affine or track_running_stats.");
}

}  // namespace
}  // namespace intarsia::data_parallel_sync_batchnorm_test
