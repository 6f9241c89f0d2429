// SequenceParallel on norms and dropout with sequences that do not divide; containers; optimizers made before.
#include "examples/llama.h"
#include "tests/nn/parallel_models.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallel_sequence_test {
namespace {

template <class Body>
void on_four_ranks(Body body) {
  for_each_world({4}, [&](int64_t n) { body(init_device_mesh(at::kCPU, {n}, {"tp"})); });
}

// 9 sequences of 10 positions and 10 features; positions lie 3, 3, 3, 1.
at::Tensor sequences() {
  torch::manual_seed(0);
  return torch::rand({9, 10, 10});
}

template <class Norm>
void check_norm(const Norm& model, const DeviceMesh& mesh) {
  auto parallel = parallelize_module(deepcopy(model), mesh, SequenceParallel());
  auto plain = deepcopy(model);
  auto input = sequences().requires_grad_(), cut = distribute_tensor(sequences(), mesh, {Shard(1)}).requires_grad_();
  CommDebugMode comms;
  auto output = parallel(cut), expected = plain(input);
  output.square().sum().backward();
  EXPECT_EQ(comms.text(), "");
  comms.exit();
  EXPECT_EQ(str(placements_of(output)), "[S(1)]");
  expect_close(output, expected.detach(), "output");
  expected.square().sum().backward();
  expect_close(cut.grad(), input.grad(), "gradient of the input");
  for (auto& parameter : parallel->parameters()) EXPECT_EQ(str(placements_of(parameter)), "[R]");
  auto grads = parallel->parameters()[0].grad();
  EXPECT_EQ(str(placements_of(grads)), "[P(sum)]");
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    auto found = full_tensor(parallel->parameters()[i].grad());
    EXPECT_TRUE(torch::allclose(found, plain->parameters()[i].grad(), 1e-4, 1e-4)) << found;
  }
}

TEST(SequenceParallel, LayerNormAndRMSNormOnUnevenSequencesSendNothing) {
  on_four_ranks([](const DeviceMesh& mesh) {
    check_norm(torch::nn::LayerNorm(torch::nn::LayerNormOptions({10})), mesh);
    check_norm(llama::RMSNorm(10), mesh);
  });
}

TEST(SequenceParallel, TakesAPlainPartOfTheSequence) {
  on_four_ranks([](const DeviceMesh& mesh) {
    llama::RMSNorm model(10);
    auto parallel = parallelize_module(deepcopy(model), mesh, SequenceParallel({.use_local_output = true}));
    auto input = sequences().narrow(1, 0, 8);
    auto output = parallel(to_local(distribute_tensor(input, mesh, {Shard(1)})));
    EXPECT_FALSE(is_dtensor(output));
    expect_close(from_local(output, mesh, {Shard(1)}), model(input).detach(), "output");
  });
}

TEST(SequenceParallel, DropoutKeepsTheCutAndScalesWhatItKeeps) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Dropout model(0.5);
    parallelize_module(model, mesh, SequenceParallel());
    torch::manual_seed(3);
    auto input = distribute_tensor(sequences() + 1, mesh, {Shard(1)}).requires_grad_();
    auto output = model(input);
    EXPECT_EQ(str(placements_of(output)), "[S(1)]");
    output.sum().backward();
    auto factor = full_tensor(output.detach()) / full_tensor(input.detach());
    EXPECT_TRUE(torch::allclose(full_tensor(input.grad()), factor));
    auto kept = factor > 0;
    EXPECT_TRUE(torch::allclose(factor.masked_select(kept), torch::full({kept.sum().item<int64_t>()}, 2.f)));
    EXPECT_GT(kept.sum().item<int64_t>(), 300);  // of 900
    EXPECT_LT(kept.sum().item<int64_t>(), 600);
    model->eval();
    expect_close(model(input), full_tensor(input.detach()), "in evaluation");
  });
}

TEST(ParallelContainers, ModulesInsideAnyModuleAndSequentialOfHookedOnes) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(0);
    torch::nn::Linear linear(10, 6);
    torch::nn::AnyModule any(linear);
    auto input = sequences();
    auto expected = linear(input).detach();
    parallelize_module(*any.ptr(), mesh, ColwiseParallel({.output_layouts = Replicate()}));
    expect_close(any.forward(input), expected, "AnyModule");
    MLPModule mlp;
    torch::nn::Sequential net(mlp, torch::nn::ReLU());
    auto plain = net->forward(input).detach();
    parallelize_module(*net, mesh, {{"0.net1", ColwiseParallel()}, {"0.net2", RowwiseParallel()}});
    expect_close(net->forward(input), plain, "Sequential");
  });
}

TEST(ParallelOptimizers, MadeBeforeParallelizingStepTheParallelParameters) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule plain, model;
    torch::optim::AdamW plain_optimizer(plain->parameters(), 0.1), optimizer(model->parameters(), 0.1);
    std::vector<std::string> names;
    for (auto& item : model->named_parameters()) names.push_back(item.key());
    parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}});
    EXPECT_EQ(model->named_parameters().keys(), names);
    torch::manual_seed(0);
    auto input = torch::rand({9, 10});
    for (int step = 0; step < 3; ++step) {
      plain_optimizer.zero_grad(), optimizer.zero_grad();
      plain(input).square().sum().backward(), model(input).square().sum().backward();
      plain_optimizer.step(), optimizer.step();
    }
    compare_params(*plain, *model, false);
  });
}

}  // namespace
}  // namespace intarsia::nn_parallel_sequence_test
