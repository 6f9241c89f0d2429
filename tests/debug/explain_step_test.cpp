#include "intarsia/debug/explain_step.h"

#include "tests/nn/parallel_models.h"
#include "tests/support/error_text.h"

namespace intarsia::debug_explain_step_test {
namespace {

const ParallelPlan& mlp_plan() {
  static const ParallelPlan plan = {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}};
  return plan;
}

TEST(ExplainStep, TellsLayoutsAndCollectivesOfAnMlp) {
  auto world = simulate(4);
  MLPModule model;
  auto story = explain(model, init_device_mesh(at::kCPU, {4}, {"tp"}), mlp_plan(), {{{12, 10}}});
  ASSERT_EQ(story.parameters.size(), 4);
  EXPECT_EQ(story.parameters[0].name, "net1.weight");
  EXPECT_EQ(story.parameters[0].layout, "[S(0)]");
  EXPECT_EQ(story.parameters[0].gradient, "[S(0)]");
  EXPECT_EQ(story.parameters[0].local_bytes, 160);
  EXPECT_EQ(story.parameters[2].layout, "[S(1)]");
  EXPECT_EQ(story.parameters[3].layout, "[R]");
  std::string text;
  for (auto& a : story.activations) text += a.op + " " + c10::str(at::IntArrayRef(a.shape)) + " " + a.layout + "\n";
  EXPECT_EQ(text,
            "linear net1.weight net1.bias [12, 16] [S(1)]\n"
            "relu [12, 4] local\n"
            "linear net2.weight net2.bias [12, 10] [P(sum)]\n"
            "sum [] local\n");
  ASSERT_EQ(story.collectives.size(), 1);
  EXPECT_EQ(str(story.collectives[0].event), "all_reduce(sum) tp 720B");
  EXPECT_EQ(story.bytes(Phase::forward), 720);
  EXPECT_EQ(story.count(Phase::backward), 0);
  EXPECT_NE(story.text().find("all_reduce(sum) tp for redistribute"), std::string::npos) << story.text();
}

TEST(ExplainStep, LeavesTheModuleAsItWas) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  MLPModule model;
  int calls = 0;
  model->register_forward_pre_hook([&](auto&, HookArguments&) { ++calls; });
  auto input = torch::rand({3, 10});
  auto before = model(input);
  auto pending = before.sum();  // a graph that is still to be run
  auto* memory = model->net1->weight.data_ptr();
  model->net2->bias.mutable_grad() = torch::ones({10});
  explain(model, mesh, mlp_plan(), {{{12, 10}}});
  EXPECT_EQ(model->net1->weight.data_ptr(), memory);
  EXPECT_TRUE(torch::equal(model->net2->bias.grad(), torch::ones({10})));
  EXPECT_FALSE(model->net1->weight.grad().defined());
  EXPECT_TRUE(torch::equal(model(input), before));
  EXPECT_EQ(calls, 3);
  pending.backward();
  EXPECT_EQ(model->net2->bias.grad()[0].item<double>(), 4);
}

TEST(ExplainStep, WorksForAModelThatCannotBeCloned) {
  struct TableImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& ids) { return out(table(ids) + torch::arange(64)); }  // makes a tensor itself
    torch::nn::Embedding table{register_module("table", torch::nn::Embedding(1000, 64))};
    torch::nn::Linear out{register_module("out", torch::nn::Linear(64, 32))};
  };
  auto world = simulate(16);
  auto mesh = init_device_mesh(at::kCPU, {16}, {"tp"});
  auto model = std::make_shared<TableImpl>();
  auto story =
      explain(model, mesh, {{"table", RowwiseParallel({.input_layouts = Replicate()})}, {"out", ColwiseParallel()}},
              {{{4, 8}, {}, at::kLong}});
  EXPECT_EQ(story.parameters[0].local_bytes, 63 * 64 * 4);
  EXPECT_EQ(str(story.collectives[0].event), "all_reduce(sum) tp 15360B");
  EXPECT_EQ(story.count(Phase::backward), 1);
}

TEST(ExplainStep, WrongUseIsAnErrorAndLeavesTheModuleAsItWas) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
  MLPModule model;
  auto text = error_text<c10::Error>([&] {
    explain(*model, mesh, mlp_plan(), {{{12, 10}}},
            [&](auto& in) { return model(in[0]) * model(in[0]).sum().template item<double>(); });
  });
  auto plain = error_text<c10::Error>([] { at::empty({}, at::kMeta).item<double>(); });  // what LibTorch says
  EXPECT_EQ(text, "[explain] the step cannot run on tensors without data: " + plain + "\nThe step cannot read values.");
  EXPECT_NE(
      error_text<c10::NotImplementedError>([&] { explain(model, mesh, {{"", RowwiseParallel()}}, {{{12, 10}}}); }),
      "no error");
  EXPECT_EQ(error_text<c10::ValueError>([&] { explain(model, mesh, mlp_plan(), {}); }).substr(0, 26),
            "[explain] 0 inputs given, ");
  for (auto& parameter : model->parameters()) EXPECT_NO_THROW(parameter.sum().item<double>());
  parallelize_module(model, mesh, mlp_plan());
  EXPECT_EQ(error_text<c10::ValueError>([&] { explain(model, mesh, mlp_plan(), {{{12, 10}}}); }).substr(0, 34),
            "[explain] a tensor of shape [16, 1");
}

}  // namespace
}  // namespace intarsia::debug_explain_step_test
