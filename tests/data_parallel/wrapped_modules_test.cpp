// Which modules fully_shard takes, and parameters that are registered after it.

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_wrapped_modules_test {
namespace {

namespace nn = torch::nn;

TEST(WrappedModules, AModuleWithoutParametersOfItsOwnMayBeWrapped) {
  in_every_world([] {
    auto model = mlp(), plain = mlp();
    for (auto& layer : model->children()) fully_shard(*layer, all_ranks());  // Tanh has none
    auto root = fully_shard(*model, all_ranks());
    root.unshard(), root.reshard(), root.set_requires_gradient_sync(true);
    EXPECT_TRUE(root.bytes() == 0 && !sharded_by(*model).is_whole() && sharded_by(*model[1]).bytes() == 0);
    EXPECT_EQ(error_text<c10::Error>([&] { fully_shard(*model, all_ranks()); }),
              "[fully_shard] SequentialImpl is sharded already.");
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    for (int64_t step = 0; step < 2; ++step) {
      own.zero_grad(), goal.zero_grad();
      auto x = inputs(step, {24, 5});
      auto loss = model->forward(mine(x, all_ranks())).square().mean();
      EXPECT_FALSE(sharded_by(*model[0]).is_whole());  // the outermost module is another one
      loss.backward(), plain->forward(x).square().mean().backward();
      own.step(), goal.step();
    }
    expect_same_tensors(*model, *plain);
  });
}

TEST(WrappedModules, HoldersModulesAndSharedPointersAreTaken) {
  auto world = simulate(2);
  auto try_all = [](auto make) {
    auto given = make();
    fully_shard(given, all_ranks());
    EXPECT_TRUE(sharded_by(given).bytes() > 0 && groups_in(given).size() == 1);
  };
  try_all([] { return nn::Linear(5, 7); });
  try_all([] { return mlp(); });
  try_all([] { return std::make_shared<nn::LinearImpl>(5, 7); });
  try_all([]() -> std::shared_ptr<nn::Module> { return std::make_shared<nn::LinearImpl>(5, 7); });
  nn::LinearImpl on_the_stack(5, 7);
  fully_shard(on_the_stack, all_ranks());
  EXPECT_EQ(groups_in(on_the_stack).size(), 1);
}

struct Growing : nn::Module {
  Growing() : w(register_parameter("w", inputs(0, {7, 5}))) {}
  at::Tensor forward(const at::Tensor& x) { return late.defined() ? at::linear(x, w, late) : at::linear(x, w); }
  at::Tensor w, late;
};

TEST(WrappedModules, AParameterThatIsRegisteredLateIsAnError) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<Growing>();
    fully_shard(*model, mesh);
    auto pass = [&] { model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward(); };
    pass();
    model->late = model->register_parameter("late", inputs(1, {7}));
    EXPECT_EQ(error_text<c10::ValueError>(pass),
              "[fully_shard] \"late\" of Growing was registered after fully_shard was called: it is in no group, and "
              "its gradient would "
              "differ between the ranks. Register parameters first, or list it in ignored_parameters.");
    model->late.set_requires_grad(false);
    model->zero_grad();
    pass();
    EXPECT_TRUE(is_dtensor(model->w.grad()));
  });
}

TEST(WrappedModules, AnIgnoredParameterIsNotLate) {
  in_every_world([] {
    auto mesh = all_ranks();
    auto model = std::make_shared<Growing>();
    model->late = model->register_parameter("late", inputs(1, {7}));
    FullyShardOptions options;
    options.ignored_parameters = {model->late};
    fully_shard(*model, mesh, options);
    model->forward(mine(inputs(0, {24, 5}), mesh)).square().mean().backward();
    EXPECT_TRUE(is_dtensor(model->w.grad()) && !is_dtensor(model->late.grad()));
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_wrapped_modules_test
