// parallelize_module and the styles against plain models, by the names that the tests of torch.distributed have.
#include "tests/nn/parallel_models.h"
#include "tests/support/world.h"

namespace intarsia::nn_parallelize_api_test {
namespace {

struct DummyModuleImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
INTARSIA_MODULE(DummyModule);

// On 4 ranks, simulated or real.
template <class Body>
void on_four_ranks(Body body) {
  for_each_world({4}, [&](int64_t n) { body(init_device_mesh(at::kCPU, {n}, {"tp"})); });
}

void check_mlp(const ParallelPlan& plan, std::vector<int64_t> size = {12, 10}) {
  on_four_ranks([&](const DeviceMesh& mesh) {
    MLPModule model;
    auto parallel = parallelize_module(deepcopy(model), mesh, plan);
    compare_module(model, parallel, size, mesh);
  });
}

ColwiseParallel colwise_gathered() { return ColwiseParallel({.output_layouts = Replicate()}); }

TEST(TensorParallelAPITests, test_parallelize_mlp_with_module_api) {
  check_mlp({{"net1", colwise_gathered()}, {"net2", colwise_gathered()}});
}

TEST(TensorParallelAPITests, test_parallelize_mlp_with_module_api_nested) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule mlp;  // Sequential's clone() would number the modules anew
    torch::nn::Sequential model({{"dummy_encoder", mlp}}), parallel({{"dummy_encoder", deepcopy(mlp)}});
    parallelize_module(*parallel, mesh,
                       {{"dummy_encoder.net1", colwise_gathered()}, {"dummy_encoder.net2", colwise_gathered()}});
    struct Forward {
      torch::nn::Sequential net;
      at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
      std::vector<at::Tensor> parameters() { return net->parameters(); }
      operator torch::nn::Module&() { return *net; }
    };
    auto plain = std::make_shared<Forward>(Forward{model}), cut = std::make_shared<Forward>(Forward{parallel});
    compare_module(plain, cut, {12, 10}, mesh);
  });
}

TEST(TensorParallelAPITests, test_linear_row_wise_parallel) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(5);
    torch::nn::Linear model(16, 10);
    auto parallel = parallelize_module(deepcopy(model), mesh, RowwiseParallel());
    compare_module(model, parallel, {9, 16}, mesh, true);
  });
}

TEST(TensorParallelAPITests, test_linear_col_wise_parallel) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(5);
    torch::nn::Linear model(10, 16);
    auto parallel = parallelize_module(deepcopy(model), mesh, colwise_gathered());
    compare_module(model, parallel, {8, 10}, mesh);
  });
}

TEST(TensorParallelAPITests, test_prepare_module_input) {
  on_four_ranks([](const DeviceMesh& mesh) {
    DummyModule module;
    parallelize_module(module, mesh,
                       PrepareModuleInput({.input_layouts = Shard(0), .desired_input_layouts = Replicate()}));
    torch::manual_seed(0);
    auto input = torch::rand({5, 7});
    auto output = module(input);
    EXPECT_EQ(str(placements_of(output)), "[R]");
    expect_close(to_local(redistribute(output, {Shard(0)})), input, "output");
  });
}

TEST(TensorParallelAPITests, test_prepare_module_output) {
  on_four_ranks([](const DeviceMesh& mesh) {
    DummyModule module;
    parallelize_module(module, mesh,
                       PrepareModuleOutput({.output_layouts = Replicate(), .desired_output_layouts = Shard(0)}));
    torch::manual_seed(15);
    auto input = from_local(torch::rand({16, 7}), mesh, {Replicate()});
    auto output = module(input), expected = to_local(redistribute(input, {Shard(0)}));
    EXPECT_FALSE(is_dtensor(output));
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      EXPECT_TRUE(torch::equal(value_at(output, slot), value_at(expected, slot)));
    }
  });
}

TEST(TensorParallelAPITests, test_prepare_module_input_output) {
  on_four_ranks([](const DeviceMesh& mesh) {
    DummyModule module;
    parallelize_module(module, mesh,
                       PrepareModuleInputOutput({.input_layouts = Shard(0),
                                                 .desired_input_layouts = Replicate(),
                                                 .output_layouts = Replicate(),
                                                 .desired_output_layouts = Shard(1)}));
    torch::manual_seed(0);
    auto input = torch::rand({5, 7});
    auto output = module(input);
    auto expected = to_local(redistribute(from_local(input, mesh, {Shard(0)}), {Shard(1)}));
    for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
      EXPECT_TRUE(torch::equal(value_at(output, slot), value_at(expected, slot)));
    }
  });
}

TEST(TensorParallelAPITests, test_parallelize_module_with_star) { check_mlp({{"net*", colwise_gathered()}}); }

TEST(TensorParallelAPITests, test_parallelize_module_src_data_rank) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    // Every rank has weights of its own.
    std::vector<std::vector<at::Tensor>> of_rank;
    for (int64_t rank = 0; rank < 4; ++rank) {
      auto& own = of_rank.emplace_back();
      torch::manual_seed(rank);
      for (auto& parameter : model->parameters()) own.push_back(torch::rand_like(parameter));
    }
    auto fresh = [&] {
      auto copy = deepcopy(model);
      auto parameters = copy->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        Shards locals;
        for (auto& slot : mesh.slots()) locals.push_back(of_rank[slot.rank][i].clone());
        parameters[i].set_data(locals.size() == 1 ? locals[0] : per_rank(locals));
      }
      return copy;
    };
    auto from_one = fresh();
    CommDebugMode comms;
    parallelize_module(from_one, mesh, {{"net*", colwise_gathered()}}, 1);
    EXPECT_GT(comms.get_total_counts(), 0);
    auto parameters = from_one->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(torch::equal(full_tensor(parameters[i]), of_rank[1][i]));

    auto without = fresh();
    comms.enter();
    parallelize_module(without, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}}, std::nullopt);
    EXPECT_EQ(comms.get_total_counts(), 0);
  });
}

TEST(TensorParallelAPITests, test_parallelize_module_with_question) { check_mlp({{"net?", colwise_gathered()}}); }

TEST(TensorParallelAPITests, test_parallelize_module_with_digit) { check_mlp({{"net[1-2]", colwise_gathered()}}); }

TEST(TensorParallelAPITests, test_parallelize_module_multi_wildcard) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPStacked model(2);
    auto parallel = parallelize_module(
        deepcopy(model), mesh, {{"layers.*.net[1]", ColwiseParallel()}, {"layers.*.net[2]", RowwiseParallel()}});
    compare_module(model, parallel, {12, 10}, mesh);
  });
}

TEST(TensorParallelAPITests, test_parallelize_module_with_root_module) {
  check_mlp({{"", PrepareModuleInputOutput({.input_layouts = Replicate(),
                                            .desired_input_layouts = Shard(0),
                                            .output_layouts = Shard(0),
                                            .desired_output_layouts = Replicate()})},
             {"net1", ColwiseParallel({.input_layouts = Shard(0)})},
             {"net2", RowwiseParallel({.output_layouts = Shard(0)})}},
            {16, 10});
}

TEST(TensorParallelAPITests, test_parallelize_module_with_no_match) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    auto parallel = deepcopy(model);
    {
      Warnings warnings;
      parallelize_module(parallel, mesh,
                         {{"net0.hello.world", ColwiseParallel()},
                          {"net1", ColwiseParallel()},
                          {"net2", RowwiseParallel()},
                          {"net3", ColwiseParallel()}});
      ASSERT_EQ(warnings.texts.size(), 2);
      for (auto& [i, path] : {std::pair(0, "net0.hello.world"), std::pair(1, "net3")}) {
        EXPECT_EQ(warnings.texts[i],
                  c10::str("[parallelize_module] the path \"", path, "\" of the plan matches no module of ",
                           model->name(), ": nothing is done for it. Compare it with named_modules()."));
      }
    }
    compare_module(model, parallel, {16, 10}, mesh);
  });
}

TEST(TensorParallelAPITests, test_under_devicemesh_context) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(5);
    torch::nn::Linear model(10, 16);
    auto parallel = deepcopy(model);
    {
      MeshScope scope(mesh);
      parallelize_module(parallel, colwise_gathered());
    }
    compare_module(model, parallel, {8, 10}, mesh);
  });
}

TEST(TensorParallelAPITests, test_empty_plan) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Linear model(10, 16);
    Warnings warnings;
    parallelize_module(model, mesh);
    ASSERT_EQ(warnings.texts.size(), 1);
    EXPECT_EQ(warnings.texts[0],
              "[parallelize_module] the plan is empty: nothing is parallelized. Give a style, or styles by path.");
    EXPECT_FALSE(is_dtensor(model->weight));
  });
}

// --- beyond those: sizes that do not divide

TEST(TensorParallelUneven, TenFeaturesOverFourRanks) {
  check_mlp({{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}}, {9, 10});
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model(10, 10);
    auto parallel =
        parallelize_module(deepcopy(model), mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}});
    EXPECT_EQ(str(placements_of(parallel->net1->weight)), "[S(0)]");
    compare_module(model, parallel, {9, 10}, mesh);
  });
}

TEST(TensorParallelUneven, RowwiseTakesUnevenColumns) {
  on_four_ranks([](const DeviceMesh& mesh) {
    torch::nn::Linear model(10, 3);
    auto parallel = parallelize_module(deepcopy(model), mesh, RowwiseParallel());
    compare_module(model, parallel, {9, 10}, mesh, true);
  });
}

TEST(TensorParallelComms, AnMlpNeedsOneReductionForwardAndOneBackward) {
  on_four_ranks([](const DeviceMesh& mesh) {
    MLPModule model;
    parallelize_module(model, mesh, {{"net1", ColwiseParallel()}, {"net2", RowwiseParallel()}});
    auto input = torch::rand({12, 10}).requires_grad_();
    CommDebugMode comms;
    auto output = model(input);
    EXPECT_EQ(comms.text(), "all_reduce(sum) tp 720B\n");
    comms.enter();
    output.sum().backward();
    EXPECT_EQ(comms.text(), "all_reduce(sum) tp 720B\n");
  });
}

}  // namespace
}  // namespace intarsia::nn_parallelize_api_test
