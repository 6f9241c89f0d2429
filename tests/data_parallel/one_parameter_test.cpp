// A parameter of fully_shard is its shards for everybody outside of forward and backward, whatever ran before: see Note
// [One parameter, seen from outside].

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/parallelize_module.h"
#include "intarsia/nn/redistribute_module.h"
#include "tests/checkpoint/folders.h"
#include "tests/data_parallel/models.h"
#include "tests/support/error_text.h"

namespace intarsia::data_parallel_one_parameter_test {
namespace {

using torch::nn::Sequential;

at::Tensor rows(int64_t step) { return inputs(step, {24, 5}); }

void evaluate(Sequential& model) {
  torch::NoGradGuard no_grad;
  model->forward(mine(rows(0), all_ranks()));
}

void train(Sequential& model, torch::optim::Optimizer& optimizer, int64_t step = 0) {
  optimizer.zero_grad();
  model->forward(mine(rows(step), all_ranks())).square().mean().backward();
  optimizer.step();
}

void train_plain(Sequential& model, torch::optim::Optimizer& optimizer, int64_t step = 0) {
  optimizer.zero_grad();
  model->forward(rows(step)).square().mean().backward();
  optimizer.step();
}

// What may have run before somebody looks at a parameter. The last one leaves a graph behind.
struct Before {
  const char* name;
  std::function<at::Tensor(Sequential&)> run;
};
std::vector<Before> all_before() {
  auto infer = [](Sequential& model) {
    c10::InferenceMode guard;
    model->forward(mine(rows(0), all_ranks()));
    return at::Tensor();
  };
  auto step = [](Sequential& model) {
    torch::optim::SGD optimizer(model->parameters(), 0.0);
    train(model, optimizer);
    model->zero_grad();
    return at::Tensor();
  };
  return {{"nothing", [](auto&) { return at::Tensor(); }},
          {"an evaluation", [](auto& model) { return evaluate(model), at::Tensor(); }},
          {"an inference", infer},
          {"a step", step},
          {"unshard and reshard",
           [](auto& model) {
             for (auto& group : groups_in(*model)) group.unshard(), group.reshard();
             return at::Tensor();
           }},
          {"a forward without its backward", [](auto& model) { return model->forward(mine(rows(0), all_ranks())); }}};
}

// Calls the body with a wrapped model after each of them, of one group and of one for each layer.
void after_anything(const std::function<void(Sequential&)>& body, bool is_slow = false) {
  in_every_world([&] {
    for (bool by_layer : {false, true}) {
      for (auto& before : all_before()) {
        if (is_slow && (by_layer || current_world().size() > 3)) continue;
        SCOPED_TRACE(before.name);
        auto model = mlp();
        if (by_layer) fully_shard(*model[0], all_ranks());
        fully_shard(*model, all_ranks());
        auto graph = before.run(model);
        body(model);
      }
    }
  });
}

TEST(OneParameter, IsItsShardsForWhoeverLooks) {
  after_anything([](auto& model) {
    auto plain = mlp();
    for (size_t i = 0; i < 6; ++i) {
      auto p = model->parameters()[i], goal = plain->parameters()[i];
      ASSERT_TRUE(is_dtensor(p) && is_dtensor(p.detach()) && is_dtensor(p.data()) && is_dtensor(p.variable_data()));
      EXPECT_EQ(str(placements_of(p)), "[S(0)]");
      EXPECT_TRUE(full_tensor(p).equal(goal));
      EXPECT_TRUE(full_tensor(redistribute(p, {Replicate()})).equal(goal));
      EXPECT_TRUE(full_tensor(from_local(to_local(p), mesh_of(p), {Shard(0)},
                                         {.shape = p.sizes().vec(), .stride = p.strides().vec()}))
                      .equal(goal));
      EXPECT_ANY_THROW(p.data_ptr());
    }
  });
}

TEST(OneParameter, TakesWhatIsWrittenToItByAnyHandle) {
  after_anything([](auto& model) {
    auto plain = mlp();
    for (size_t i = 0; i < 6; ++i) {
      torch::NoGradGuard no_grad;
      auto p = model->parameters()[i];
      auto value = inputs(static_cast<int64_t>(i), p.sizes().vec());
      if (i % 3 == 0) p.copy_(value);
      if (i % 3 == 1) p.data() = value;  // copies
      if (i % 3 == 2) to_local(p).copy_(to_local(distribute_tensor(value, all_ranks(), {Shard(0)}, std::nullopt)));
      plain->parameters()[i].copy_(value);
    }
    expect_same_tensors(*model, *plain, 0);
    torch::NoGradGuard no_grad;
    auto out = full_tensor(from_local(model->forward(mine(rows(1), all_ranks())), all_ranks(), {Shard(0)}));
    EXPECT_TRUE(torch::allclose(out, plain->forward(rows(1)), 1e-12, 1e-12));
  });
}

TEST(OneParameter, IsLoadedAndSavedByName) {
  TestFolder folder("one-parameter");
  after_anything(
      [&](auto& model) {
        TestFolder::meet();
        auto other = mlp();
        for (auto& p : other->parameters()) p.detach().fill_(7);
        checkpoint::Items saved, loaded, again;
        for (auto& item : other->named_parameters()) saved.emplace_back(item.key(), item.value());
        for (auto& item : model->named_parameters()) loaded.emplace_back(item.key(), item.value());
        for (auto& item : model->named_parameters()) again.emplace_back(item.key(), item.value().detach());
        checkpoint::save(folder / "c", saved);
        checkpoint::load(folder / "c", loaded);
        expect_same_tensors(*model, *other, 0);
        evaluate(model);  // uses the whole
        expect_same_tensors(*model, *other, 0);
        checkpoint::save(folder / "d", again);
        for (auto& p : other->parameters()) p.detach().fill_(3);
        checkpoint::load(folder / "d", saved);
        EXPECT_EQ(other->parameters()[0].min().item<double>(), 7);
      },
      /*is_slow=*/true);
}

// As what it is at rest, also by a handle of the whole that is older than the save.
TEST(OneParameter, IsSavedAndLoadedWhileItIsUnsharded) {
  in_every_world([] {
    TestFolder folder("one-parameter-unsharded");
    auto model = mlp(), plain = mlp();
    auto group = fully_shard(*model, all_ranks());
    group.unshard();
    auto p = model->parameters()[0], handle = p.detach();
    EXPECT_FALSE(is_dtensor(p) || is_dtensor(handle));
    checkpoint::save(folder / "c", {{"w", handle}});
    EXPECT_FALSE(is_dtensor(p));
    auto read = torch::zeros_like(plain->parameters()[0]);
    checkpoint::load(folder / "c", {{"w", read}});
    EXPECT_TRUE(read.equal(plain->parameters()[0]));
    checkpoint::save(folder / "d", {{"w", at::full({7, 5}, 7.0, at::kDouble)}});
    checkpoint::load(folder / "d", {{"w", p}});
    EXPECT_EQ(p.data_ptr<double>()[34], 7);
    group.reshard();
    EXPECT_TRUE(full_tensor(p).equal(at::full({7, 5}, 7.0, at::kDouble)));
  });
}

TEST(OneParameter, ServesOptimizersThatAreLoadedAlone) {
  TestFolder folder("one-parameter-optimizers");
  after_anything(
      [&](auto& model) {
        TestFolder::meet();
        auto plain = mlp();
        torch::optim::AdamW goal(plain->parameters(), 0.1), own(model->parameters(), 0.1);
        train_plain(plain, goal);
        checkpoint::save(folder / "c", {{"optimizer", goal}});
        checkpoint::save(folder / "d", {{"model", plain}});
        checkpoint::load(folder / "c", {{"optimizer", own}});
        evaluate(model);
        checkpoint::load(folder / "d", {{"model", model}});
        train(model, own, 1), train_plain(plain, goal, 1);
        expect_same_tensors(*model, *plain);
      },
      /*is_slow=*/true);
}

TEST(OneParameter, ServesOptimizersThatAreMadeAnyTime) {
  after_anything([](auto& model) {
    auto plain = mlp();
    torch::optim::Adagrad goal(plain->parameters(), 0.1), own(model->parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) train(model, own, step), train_plain(plain, goal, step), evaluate(model);
    expect_same_tensors(*model, *plain);
  });
}

// Each with what it has of state when it is made, and after steps.
TEST(OneParameter, TakesTheStateOfOptimizersFromBefore) {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  namespace optim = torch::optim;
  std::vector<Make> kinds = {
      [](auto p) { return std::make_unique<optim::Adagrad>(p, 0.1); },
      [](auto p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1)); },
      [](auto p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.1)); },
      [](auto p) {
        return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
      }};
  in_every_world([&] {
    for (auto& make : kinds) {
      for (int64_t steps : {0, 2}) {
        auto model = mlp(), plain = mlp();
        auto own = make(model->parameters()), goal = make(plain->parameters());
        for (int64_t step = 0; step < steps; ++step) train_plain(model, *own, step), train_plain(plain, *goal, step);
        model->zero_grad();
        fully_shard(*model, all_ranks());
        for (int64_t step = 2; step < 5; ++step) train(model, *own, step), train_plain(plain, *goal, step);
        expect_same_tensors(*model, *plain, 1e-10);
      }
    }
  });
}

// A pass without sync leaves terms of an average, [P(avg)], which an optimizer may read at once.
TEST(OneParameter, TakesTheStateFromBeforeBesideAGradientThatWaits) {
  in_every_world([] {
    auto n = current_world().size();
    auto copies = init_device_mesh(at::kCPU, {n % 2 ? 1 : 2, n % 2 ? n : n / 2}, {"copies", "shards"});
    for (auto& mesh : {all_ranks(), copies}) {
      auto model = mlp(), plain = mlp();
      torch::optim::Adagrad own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
      fully_shard(*model, mesh);
      for (bool syncs : {false, true, false}) {
        for (auto& group : groups_in(*model)) group.set_requires_gradient_sync(syncs);
        train(model, own, syncs), train_plain(plain, goal, syncs);
      }
      expect_same_tensors(*model, *plain, 1e-10);
      auto p = model->parameters()[0];
      auto& state = static_cast<torch::optim::AdagradParamState&>(*own.state().at(p.unsafeGetTensorImpl()));
      EXPECT_EQ(str(placements_of(state.sum())), str(placements_of(p)));
    }
  });
}

TEST(OneParameter, SaysOptimizerStateWhereItCannotMoveIt) {
  auto world = simulate(2);
  auto model = mlp();
  fully_shard(*model, all_ranks());
  auto state = at::zeros({7, 5}, at::kDouble), grad = distribute_tensor(state, all_ranks(), {Shard(0)});
  auto view = state.view(-1);  // would not see it
  EXPECT_EQ(error_text<c10::Error>([&] { state.add_(grad); }),
            "[aten::add_.Tensor] argument \"self\" is a plain tensor of shape [7, 5], and a distributed result cannot "
            "be written into "
            "it. Distribute it first, or call full_tensor on the others. If it is optimizer state from before "
            "fully_shard, make the "
            "optimizer after it.");
  EXPECT_EQ(error_text<c10::Error>([&] { at::maximum(grad, state); }),
            "[aten::maximum] got mixed torch.Tensor and DTensor: argument \"other\" is a plain tensor of shape [7, 5], "
            "while others lie on "
            "DeviceMesh(cpu, dp=2). Distribute it with distribute_tensor or from_local, the parameters of a module "
            "with distribute_module, or open a "
            "PlainTensorScope(PlainTensors::replicate). If it is optimizer state from before fully_shard, make the "
            "optimizer after it.");
}

TEST(OneParameter, IsLaidOutByFullyShardAlone) {
  after_anything([](auto& model) {
    auto mesh = all_ranks();
    auto text = [](const char* where) {
      return c10::str(
          "[", where,
          "] \"0.weight\" of torch::nn::SequentialImpl is sharded by fully_shard, which says how it is laid out. ",
          "Call fully_shard after ", where, ".");
    };
    EXPECT_EQ(error_text<c10::ValueError>([&] { parallelize_module(*model, mesh, {{"0", ColwiseParallel()}}); }),
              text("parallelize_module"));
    EXPECT_EQ(error_text<c10::ValueError>([&] { distribute_module(*model, mesh); }), text("distribute_module"));
    auto plan = [](auto&, auto&) { return Placements{Replicate()}; };
    EXPECT_EQ(error_text<c10::ValueError>([&] { redistribute(*model, mesh, plan); }), text("redistribute"));
    auto plain = mlp();
    torch::optim::SGD own(model->parameters(), 0.1), goal(plain->parameters(), 0.1);
    train(model, own), train_plain(plain, goal);  // it is as it was
    expect_same_tensors(*model, *plain);
  });
}

// The transpose of a square one has its shape, and is another value.
TEST(OneParameter, IsWrittenWithViewsOfAnother) {
  in_every_world([] {
    auto model = mlp(5), plain = mlp(5);
    fully_shard(*model, all_ranks());
    torch::NoGradGuard no_grad;
    for (auto& module : {model, plain}) {
      auto p = module->parameters()[2];
      p.copy_(module->parameters()[0].t());
      p.add_(module->parameters()[0].narrow(1, 0, 1));
    }
    expect_same_tensors(*model, *plain);
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_one_parameter_test
