#include "intarsia/nn/hooks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/distribute_module.h"
#include "intarsia/simulation/simulation.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"

namespace intarsia::nn_hooks_test {
namespace {

struct ScaleImpl : torch::nn::Cloneable<ScaleImpl> {
  ScaleImpl() { reset(); }
  void reset() override { factor = register_parameter("factor", torch::full({1}, 3.)); }
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
};
INTARSIA_MODULE(Scale);

struct HalfImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) const { return x / 2; }
};
INTARSIA_MODULE(Half);

struct SplitImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x, int64_t at, std::optional<at::Tensor> bias) {
    if (bias) x = x + *bias;
    return {x.slice(0, 0, at), x.slice(0, at)};
  }
};
INTARSIA_MODULE(Split);

struct PlainImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};
TORCH_MODULE(Plain);

TEST(Hooks, RunInTheOrderOfRegistrationAndReplaceValues) {
  Scale scale;
  std::string order;
  scale->register_forward_pre_hook([&](auto&, HookArguments& in) { order += "a", in.tensor(0) = in.tensor(0) + 1; });
  scale->register_forward_pre_hook([&](auto&, HookArguments& in) { order += "b", in.tensor(0) = in.tensor(0) * 2; });
  scale->register_forward_hook([&](auto& module, HookArguments& in, HookArguments& out) {
    EXPECT_EQ(&module, scale.get());
    EXPECT_EQ(in.tensor(0).item<double>(), 4);
    order += "c", out.tensor(0) = -out.tensor(0);
  });
  EXPECT_EQ(scale(torch::ones({1})).item<double>(), -12);
  EXPECT_EQ(order, "abc");
}

TEST(Hooks, APrependedHookRunsFirst) {
  Scale scale;
  std::string order;
  scale->register_forward_pre_hook([&](auto&, HookArguments&) { order += "b"; });
  auto handle = scale->register_forward_pre_hook([&](auto&, HookArguments&) { order += "a"; }, true);
  scale(torch::ones({1}));
  handle.remove();
  scale(torch::ones({1}));
  EXPECT_EQ(order, "abb");
}

TEST(Hooks, AForwardThatIsConstStaysConst) {
  const Half half;
  const_cast<Half&>(half)->register_forward_pre_hook([](auto&, HookArguments& in) { in.tensor(0) = in.tensor(0) + 1; });
  EXPECT_EQ(half->forward(torch::ones({1})).item<double>(), 1);
}

TEST(Hooks, AHandleRemovesItsHookAndMayOutliveTheModule) {
  HookHandle outlives;
  Scale scale;
  int calls = 0;
  auto handle = scale->register_forward_pre_hook([&](auto&, HookArguments&) { ++calls; });
  outlives = scale->register_forward_hook([&](auto&, HookArguments&, HookArguments&) { calls += 10; });
  scale(torch::ones({1}));
  handle.remove();
  handle.remove();
  scale(torch::ones({1}));
  EXPECT_EQ(calls, 21);
  scale = nullptr;
  outlives.remove();
}

TEST(Hooks, AHookMayRemoveItself) {
  Scale scale;
  int calls = 0;
  HookHandle handle;
  handle = scale->register_forward_pre_hook([&](auto&, HookArguments&) { ++calls, handle.remove(); });
  scale(torch::ones({1})), scale(torch::ones({1}));
  EXPECT_EQ(calls, 1);
}

TEST(Hooks, AnErrorInAHookLeavesTheHooksAsTheyAre) {
  Scale scale;
  bool fails = true;
  scale->register_forward_pre_hook([&](auto&, HookArguments&) { TORCH_CHECK(!fails, "no"); });
  EXPECT_THROW(scale(torch::ones({1})), c10::Error);
  fails = false;
  EXPECT_EQ(scale(torch::ones({1})).item<double>(), 3);
}

TEST(Hooks, SeeEveryArgumentAndEveryResult) {
  Split split;
  split->register_forward_pre_hook([](auto&, HookArguments& in) {
    EXPECT_EQ(in.size(), 3);
    in.get<int64_t>(1) = 2;
    in.get<std::optional<at::Tensor>>(2) = torch::ones({1});
    EXPECT_EQ(error_text<c10::TypeError>([&] { in.tensor(1); }),
              "[HookArguments] value 1 is a long, not a at::Tensor. Ask for the type that forward has there.");
  });
  split->register_forward_hook(
      [](auto&, HookArguments&, HookArguments& out) { std::swap(out.tensor(0), out.tensor(1)); });
  auto [last, first] = split(torch::zeros({3}), 1, std::nullopt);
  EXPECT_EQ(first.numel(), 2);
  EXPECT_EQ(last.item<double>(), 1);
  EXPECT_EQ(split->input_count(), 3);
  EXPECT_EQ(split->output_count(), 2);
}

TEST(Hooks, WorkInSequentialAnyModuleAndOnLibTorchsModules) {
  int calls = 0;
  auto count = [&](auto&, HookArguments&) { ++calls; };
  auto linear = std::make_shared<Hooked<torch::nn::LinearImpl>>(1, 1);
  linear->register_forward_pre_hook(count);
  torch::nn::Sequential net(linear, torch::nn::ReLU(), linear);
  net->forward(torch::ones({2, 1}));
  torch::nn::AnyModule any(linear);
  any.forward(torch::ones({1}));
  EXPECT_EQ(calls, 3);
}

TEST(Hooks, ACloneHasItsOwnTensorsAndTheSameHooks) {
  Scale scale;
  int calls = 0;
  auto handle = scale->register_forward_pre_hook([&](auto&, HookArguments&) { ++calls; });
  auto copy = std::dynamic_pointer_cast<Hooked<ScaleImpl>>(scale->clone());
  ASSERT_TRUE(copy);
  EXPECT_FALSE(copy->factor.is_alias_of(scale->factor));
  handle.remove();
  copy->forward(torch::ones({1}));
  EXPECT_EQ(calls, 1);
  torch::nn::Sequential net(scale);
  scale->register_forward_pre_hook([&](auto&, HookArguments&) { calls += 10; });
  std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone())->forward(torch::ones({1}));
  EXPECT_EQ(calls, 11);
}

struct ParentImpl : torch::nn::Cloneable<ParentImpl> {
  ParentImpl() { reset(); }
  void reset() override { scale = register_module("scale", Scale()); }
  at::Tensor forward(const at::Tensor& x) { return scale(x); }
  Scale scale{nullptr};
};
INTARSIA_MODULE(Parent);

TEST(Hooks, ACloneOfAParentKeepsTheHooksOfItsChildren) {
  Parent parent;
  parent->scale->register_forward_pre_hook([](auto&, HookArguments& in) { in.tensor(0) = in.tensor(0) + 1; });
  auto copy = std::dynamic_pointer_cast<Hooked<ParentImpl>>(parent->clone());
  EXPECT_EQ(copy->forward(torch::ones({1})).item<double>(), 6);
  EXPECT_NE(copy->scale.get(), parent->scale.get());
}

TEST(DistributeModule, InputAndOutputFunctionsAreHooks) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  Scale scale;
  distribute_module(
      *scale, mesh, nullptr,
      [](auto&, HookArguments& in, auto& mesh) { in.tensor(0) = distribute_tensor(in.tensor(0), mesh, {Shard(0)}); },
      [](auto&, HookArguments& out, auto&) { out.tensor(0) = full_tensor(out.tensor(0)); });
  EXPECT_EQ(scale(torch::ones({4})).sum().item<double>(), 12);
}

TEST(DistributeModule, WithoutHooksTheErrorShowsTheLineToChange) {
  auto world = simulate(2);
  auto mesh = init_device_mesh(at::kCPU, {2});
  Plain plain;
  auto text = error_text<c10::TypeError>(
      [&] { distribute_module(*plain, mesh, nullptr, [](auto&, HookArguments&, auto&) {}, nullptr); });
  EXPECT_EQ(text,
            "[distribute_module] input_fn runs code around the forward of intarsia::nn_hooks_test::(anonymous "
            "namespace)::PlainImpl, which "
            "has no hooks. Declare it with  INTARSIA_MODULE(Plain);  in place of  TORCH_MODULE(Plain);  or use "
            "intarsia::Hooked<intarsia::nn_hooks_test::(anonymous namespace)::PlainImpl>.");
}

}  // namespace
}  // namespace intarsia::nn_hooks_test
