// Styles on unmodified modules: what survives, what is refused, and state dicts.
#include <sstream>

#include "tests/nn/parallel_models.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallel_styles_test {
namespace {

template <class Body>
void on_four_ranks(Body body) {
  for_each_world({4}, [&](int64_t n) { body(init_device_mesh(at::kCPU, {n}, {"tp"})); });
}

const ParallelPlan& mlp_plan() {
  static const ParallelPlan plan = {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}};
  return plan;
}

struct PlainMlpImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return net(x); }
  torch::nn::Linear net{register_module("net", torch::nn::Linear(4, 4))};
};
TORCH_MODULE(PlainMlp);

TEST(ParallelStyles, SurviveCloneAndConversion) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    auto parallel = parallelize_module(deepcopy(model), mesh, mlp_plan());
    auto copy = deepcopy(parallel);
    EXPECT_FALSE(shards_of(copy->net1->weight)[0].is_alias_of(shards_of(parallel->net1->weight)[0]));
    compare_module(model, copy, {12, 10}, mesh);
    parallel->to(at::kDouble);
    auto wide = deepcopy(model);
    load_full_state_dict(*wide, full_state_dict(*parallel));
    auto input = torch::rand({12, 10});
    torch::manual_seed(0);
    input = torch::rand({12, 10});
    expect_close(parallel->forward(input.to(at::kDouble)).to(at::kFloat), wide->forward(input), "output");
  });
}

TEST(ParallelStyles, SurviveNewDataOfTheParameter) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Linear model(6, 5);
    for (auto& parameter : model->parameters()) parameter.set_data(torch::ones_like(parameter));
    parallelize_module(model, mesh, ColwiseParallel({.output_layouts = Replicate()}));
    model->weight.set_data(distribute_tensor(torch::full({5, 6}, 2.), mesh, {Shard(0)}));
    expect_close(model(torch::ones({2, 6})), torch::full({2, 5}, 13.), "output");
  });
}

TEST(ParallelStyles, WorkInSequentialAndModuleDict) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(0);
    torch::nn::Linear first(6, 8), second(8, 6);
    torch::nn::Sequential net(first, torch::nn::ReLU(), second);
    torch::manual_seed(1);
    auto input = torch::rand({3, 6});
    auto expected = net->forward(input).detach();
    parallelize_module(*net, mesh, {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
    expect_close(net->forward(input), expected, "Sequential");
    torch::nn::ModuleDict dict;
    dict->update({{"up", torch::nn::Linear(6, 8).ptr()}});
    parallelize_module(*dict, mesh, {{"u*", ColwiseParallel()}});
    EXPECT_TRUE(is_dtensor(dict["up"]->as<torch::nn::Linear>()->weight));
  });
}

TEST(ParallelStyles, EmbeddingsByColumnsAndByRows) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(0);
    torch::nn::Embedding model(9, 6);
    auto ids = torch::tensor({{0, 3, 8}, {5, 3, 1}});
    auto expected = model(ids);
    expected.sum().backward();
    auto grad = model->weight.grad().clone();
    for (bool rows : {false, true}) {
      auto parallel = deepcopy(model);
      LinearStyleOptions options{.input_layouts = Replicate(), .output_layouts = Replicate()};
      if (rows) parallelize_module(parallel, mesh, RowwiseParallel(options));
      if (!rows) parallelize_module(parallel, mesh, ColwiseParallel(options));
      EXPECT_EQ(str(placements_of(parallel->weight)), rows ? "[S(0)]" : "[S(1)]");
      auto output = parallel(ids);
      expect_close(output, expected.detach(), "output");
      output.sum().backward();
      expect_close(parallel->weight.grad(), grad, "gradient");
    }
  });
}

TEST(ParallelStyles, LayerNormOnASequenceThatIsCut) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::LayerNorm model(torch::nn::LayerNormOptions({6}));
    auto parallel = parallelize_module(deepcopy(model), mesh, SequenceParallel());
    torch::manual_seed(0);
    auto input = torch::rand({2, 8, 6});
    auto local = to_local(distribute_tensor(input, mesh, {Shard(1)}));
    auto output = parallel(local), expected = model(input);
    EXPECT_EQ(str(placements_of(output)), "[S(1)]");
    expect_close(output, expected.detach(), "output");
    expected.square().sum().backward();
    output.square().sum().backward();
    compare_params(*model, *parallel, true);
  });
}

TEST(ParallelStyles, ATiedWeightHasAStylePerOp) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Embedding table(8, 6);
    torch::nn::Linear head(torch::nn::LinearOptions(6, 8).bias(false));
    head->weight = head->parameters()[0] = table->weight;
    torch::nn::Sequential net(table, head);
    auto ids = torch::tensor({1, 7});
    auto expected = torch::linear(torch::embedding(table->weight, ids), table->weight).detach();
    parallelize_module(table, mesh, RowwiseParallel({.input_layouts = Replicate()}));
    parallelize_module(head, mesh, ColwiseParallel({.output_layouts = Replicate()}));
    expect_close(head(table(ids)), expected, "logits");
  });
}

TEST(StateDicts, MoveWeightsBetweenPlainAndParallelModels) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model, other;
    for (auto& parameter : model->parameters()) parameter.set_data(torch::rand_like(parameter).fill_(0.25));
    auto parallel = parallelize_module(deepcopy(other), mesh, mlp_plan());
    auto* handle = parallel->net1->weight.unsafeGetTensorImpl();
    load_full_state_dict(*parallel, full_state_dict(*model));
    EXPECT_EQ(parallel->net1->weight.unsafeGetTensorImpl(), handle);
    compare_module(model, parallel, {12, 10}, mesh);
    load_full_state_dict(*other, full_state_dict(*parallel));
    compare_params(*other, *parallel, false);
  });
}

TEST(StateDicts, SavingAndLoadingAParallelModuleDirectlyNamesThem) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    std::stringstream file;
    torch::save(model, file);
    auto parallel = parallelize_module(deepcopy(model), mesh, mlp_plan());
    auto loading = error_text<c10::Error>([&] { torch::load(parallel, file); });
    EXPECT_EQ(loading,
              "[aten::set_.source_Tensor] gives a tensor the memory of another, and a distributed tensor has none of "
              "its own. Use copy_ "
              "or set_data. To load a module, as torch::load does by this op, use checkpoint::load; or load a plain "
              "one and call "
              "load_full_state_dict(module, full_state_dict(plain)).");
    std::stringstream other;
    auto saving = error_text<c10::Error>([&] { torch::save(parallel, other); });
    EXPECT_EQ(saving,
              "[storage] a distributed tensor of shape [16, 10], [S(0)] on DeviceMesh(cpu, tp=4), has no memory of its "
              "own. Use "
              "to_local(tensor) or shards_of(tensor) for the local shard, or full_tensor(tensor) for the whole; "
              "is_alias_of(a, b) "
              "tells whether two tensors share memory. To save a module, use checkpoint::save or "
              "full_state_dict(module), and to "
              "load one checkpoint::load or load_full_state_dict(module, dict).");
    compare_params(*model, *parallel, false);
  });
}

TEST(StateDicts, WrongDictsAreErrorsBeforeAnythingIsWritten) {
  MLPModule model;
  auto before = full_state_dict(*model);
  StateDict wrong = full_state_dict(*model);
  wrong["net1.weight"] = torch::zeros({16, 10});
  wrong["net2.bias"] = torch::zeros({3});
  EXPECT_EQ(
      error_text<c10::ValueError>([&] { load_full_state_dict(*model, wrong); }),
      "[load_full_state_dict] \"net2.bias\" has the shape [3] in the dict and [10] in the module. They must be equal.");
  wrong.erase("net2.bias");
  EXPECT_EQ(error_text<c10::ValueError>([&] { load_full_state_dict(*model, wrong); }),
            "[load_full_state_dict] the dict has no value for \"net2.bias\". Add it, for instance from full_state_dict "
            "of this module.");
  wrong.insert("net3", torch::zeros({1}));
  EXPECT_EQ(error_text<c10::ValueError>([&] { load_full_state_dict(*model, wrong); }).substr(0, 22),
            "[load_full_state_dict]");
  EXPECT_TRUE(torch::equal(model->net1->weight, before["net1.weight"]));
}

TEST(StateDicts, SavingAParallelModuleIsAnErrorThatSaysWhatToDo) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Linear model(4, 4);
    parallelize_module(model, mesh, ColwiseParallel());
    std::ostringstream stream;
    auto text = error_text<c10::Error>([&] { torch::save(model, stream); });
    EXPECT_EQ(text,
              "[storage] a distributed tensor of shape [4, 4], [S(0)] on DeviceMesh(cpu, tp=4), has no memory of its "
              "own. Use "
              "to_local(tensor) or shards_of(tensor) for the local shard, or full_tensor(tensor) for the whole; "
              "is_alias_of(a, b) "
              "tells whether two tensors share memory. To save a module, use checkpoint::save or "
              "full_state_dict(module), and to "
              "load one checkpoint::load or load_full_state_dict(module, dict).");
  });
}

TEST(BadPlans, LeaveTheModuleAsItWas) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    auto untouched = [&] {
      for (auto& parameter : model->parameters()) EXPECT_FALSE(is_dtensor(parameter));
      model(torch::rand({2, 10}));
    };
    EXPECT_EQ(error_text<c10::NotImplementedError>([&] {
                parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"", RowwiseParallel()}});
              }).substr(0, 39),
              "[RowwiseParallel] the module itself is ");
    untouched();
    PrepareModuleInput two(
        {.input_layouts = {Shard(0), std::nullopt}, .desired_input_layouts = {Replicate(), std::nullopt}});
    auto text =
        error_text<c10::ValueError>([&] { parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"", two}}); });
    EXPECT_EQ(text, "[PrepareModuleInput] input_layouts has 2 entries, but the forward of the module, of type " +
                        model->name() + ", has 1 inputs. Give one entry for each; std::nullopt leaves one alone.");
    untouched();
    struct Fails final : ParallelStyle {
      std::string name() const override { return "Fails"; }
      void apply(const StyleTarget& target) const override {
        distribute_parameter(target.module, "bias", target.mesh, {Shard(1)});
      }
    };
    EXPECT_NE(error_text<c10::IndexError>(
                  [&] { parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"net2", Fails()}}); }),
              "no error");
    untouched();
    EXPECT_EQ(error_text<c10::ValueError>([&] { PrepareModuleInput({.input_layouts = Shard(0)}); }),
              "[PrepareModuleInput] input_layouts has 1 entries and desired_input_layouts has 0. Give both one entry "
              "for each; "
              "std::nullopt leaves one alone.");
  });
}

TEST(BadPlans, AMeshOfTwoAxesAndAModuleWithoutHooks) {
  on_four_ranks([](const DeviceMesh& line) {
    auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    PlainMlp model;
    EXPECT_EQ(
        error_text<c10::ValueError>([&] { parallelize_module(model, mesh, {{"net", ColwiseParallel()}}); }),
        "[parallelize_module] DeviceMesh(cpu, dp=2, tp=2) has 2 axes. Tensor parallelism takes one: slice the mesh, as "
        "in mesh[\"tp\"].");
    PrepareModuleInput prepare({.input_layouts = Shard(0), .desired_input_layouts = Replicate()});
    auto text = error_text<c10::TypeError>([&] { parallelize_module(model, line, prepare); });
    auto type = c10::demangle(typeid(PlainMlpImpl).name());
    EXPECT_EQ(text, "[parallelize_module] PrepareModuleInput at the module itself runs code around the forward of " +
                        type +
                        ", which has no hooks. Declare it with  INTARSIA_MODULE(PlainMlp);  in place of  "
                        "TORCH_MODULE(PlainMlp);  or use "
                        "intarsia::Hooked<" +
                        type + ">.");
    parallelize_module(model, mesh["tp"], {{"net", ColwiseParallel({.output_layouts = Replicate()})}});
    EXPECT_TRUE(is_dtensor(model->net->weight));
  });
}

}  // namespace
}  // namespace intarsia::nn_parallel_styles_test
