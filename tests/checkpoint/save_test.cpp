#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/nn/state_dict.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::checkpoint_save_test {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

const std::vector<std::string> kLayouts = {"[R]", "[S(0)]", "[S(1)]", "[SS(0, 2)]", "[P(sum)]"};

TEST(Checkpoint, EveryLayoutLoadsFromEveryOther) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    TestFolder folder("layouts");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    for (auto shape : {std::vector<int64_t>{8, 6}, {5, 3}, {1, 2}, {0, 3}}) {
      for (auto& from : kLayouts) {
        auto laid = lay_out(waves(shape), mesh, parse_placements(from)), whole = full_tensor(laid);
        checkpoint::save(folder / "x", {{"x", laid}});
        for (auto& to : kLayouts) {
          auto x = zeros(shape, mesh, parse_placements(to), at::kDouble);
          checkpoint::load(folder / "x", {{"x", x}});
          EXPECT_TRUE(full_tensor(x).equal(whole)) << from << " to " << to << " of " << at::IntArrayRef(shape);
        }
        auto plain = at::zeros(shape, at::kDouble);
        checkpoint::load(folder / "x", {{"x", plain}});
        EXPECT_TRUE(plain.equal(whole)) << from << " to a plain tensor";
      }
    }
  });
}

TEST(Checkpoint, AnotherNumberOfRanksLoads) {
  if (process_world()) GTEST_SKIP() << "simulates other numbers of ranks itself";
  TestFolder folder("ranks");
  auto whole = waves({7, 10});
  for (int64_t n : {1, 2, 3, 4, 8}) {
    {
      auto world = simulate(n);
      checkpoint::save(folder / "x", {{"x", distribute_tensor(whole, init_device_mesh(c10::kCPU, {n}), {Shard(0)})}});
    }
    for (int64_t m : {1, 2, 5, 8}) {
      auto world = simulate(m);
      for (int64_t dim : {0, 1}) {
        auto x = zeros({7, 10}, init_device_mesh(c10::kCPU, {m}), {Shard(dim)}, at::kDouble);
        checkpoint::load(folder / "x", {{"x", x}});
        EXPECT_TRUE(full_tensor(x).equal(whole)) << n << " to " << m;
      }
    }
  }
}

TEST(Checkpoint, LargeTensorsOfManyBlocksLoadInParts) {
  for_each_world({4}, [](int64_t) {
    TestFolder folder("large");
    auto mesh = init_device_mesh(c10::kCPU, {2, 2});
    auto whole = at::arange(1500 * 1001, at::kInt).reshape({1500, 1001});
    checkpoint::save(folder / "x", {{"x", distribute_tensor(whole, mesh, {Shard(0), Replicate()}, std::nullopt)}});
    for (auto* to : {"[S(1), S(0)]", "[S(1), S(1)]", "[SS(0, 3), R]", "[R, R]"}) {
      auto x = zeros({1500, 1001}, mesh, parse_placements(to), at::kInt),
           wide = zeros({1500, 1001}, mesh, parse_placements(to), at::kDouble);
      checkpoint::load(folder / "x", {{"x", x}});
      checkpoint::load(folder / "x", {{"x", wide}});
      EXPECT_TRUE(full_tensor(x).equal(whole)) << to;
      EXPECT_TRUE(full_tensor(wide).equal(whole.to(at::kDouble))) << to;
    }
  });
}

TEST(Checkpoint, ReplicasShareTheWriting) {
  for_each_world({4}, [](int64_t) {
    TestFolder folder("replicas");
    auto mesh = init_device_mesh(c10::kCPU, {2, 2});
    checkpoint::save(folder / "x",
                     {{"x", distribute_tensor(at::zeros({8, 4}), mesh, {Replicate(), Shard(1)}, std::nullopt)}});
    auto index = checkpoint::read_index(folder / "x");
    ASSERT_EQ(index.files.size(), 4u);
    std::string boxes;
    for (auto& piece : index.tensors.at("x").pieces) boxes += str(piece.box);
    EXPECT_EQ(boxes, "[0:4, 0:2][0:4, 2:4][4:8, 0:2][4:8, 2:4]");
  });
}

TEST(Checkpoint, OfEveryDtypeAndOfScalars) {
  for_each_world({2}, [](int64_t) {
    TestFolder folder("dtypes");
    auto mesh = init_device_mesh(c10::kCPU, {2});
    for (auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                       at::kFloat, at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn}) {
      auto whole = at::arange(5).to(dtype), scalar = at::scalar_tensor(1).to(dtype);
      checkpoint::save(folder / "x", {{"x", distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt)},
                                      {"s", scalar},
                                      {"d", distribute_tensor(scalar, mesh, {Replicate()}, std::nullopt)}});
      auto x = at::zeros({5}, dtype), s = at::zeros({}, dtype), d = at::zeros({}, dtype);
      checkpoint::load(folder / "x", {{"x", x}, {"s", s}, {"d", d}});
      for (auto& [found, goal] : {std::pair{x, whole}, {s, scalar}, {d, scalar}})
        EXPECT_TRUE(found.reshape({-1}).view(at::kByte).equal(goal.reshape({-1}).view(at::kByte))) << dtype;
    }
    EXPECT_EQ(error_text<c10::TypeError>(
                  [&] { checkpoint::save(folder / "y", {{"x", at::zeros({2}, at::kComplexDouble)}}); }),
              "[checkpoint::save] \"x\": the format safetensors has no name for ComplexDouble");
  });
}

TEST(Checkpoint, NumbersAndTextsComeBackAsTheyWere) {
  in_every_world([] {
    TestFolder folder("values");
    auto inf = std::numeric_limits<double>::infinity();
    checkpoint::save(folder / "v", {{"step", 100},
                                    {"loss", 0.1},
                                    {"best", inf},
                                    {"worst", -inf},
                                    {"odd", std::nan("")},
                                    {"done", true},
                                    {"name", "snow \xE2\x9D\x84 \"x\""},
                                    {"low", INT64_MIN},
                                    {"one", 1.0}});
    auto loaded = checkpoint::load(folder / "v", {});
    EXPECT_EQ(loaded.integer("step"), 100);
    EXPECT_EQ(loaded.number("loss"), 0.1);
    EXPECT_EQ(loaded.number("best"), inf);
    EXPECT_EQ(loaded.number("worst"), -inf);
    EXPECT_TRUE(std::isnan(loaded.number("odd")));
    EXPECT_TRUE(loaded.flag("done"));
    EXPECT_EQ(loaded.text("name"), "snow \xE2\x9D\x84 \"x\"");
    EXPECT_EQ(loaded.integer("low"), INT64_MIN);
    EXPECT_EQ(loaded.number("step"), 100.0);
    EXPECT_EQ(error_text<c10::ValueError>([&] { loaded.integer("stap"); }),
              "[checkpoint::load] there is no value \"stap\" (the checkpoint has \"step\").");
    EXPECT_EQ(error_text<c10::TypeError>([&] { loaded.integer("one"); }),
              "[checkpoint::load] \"one\" is 1, which is no whole number.");
  });
}

Sequential small_model() { return Sequential(Linear(6, 5), torch::nn::BatchNorm1d(5), Linear(5, 3)); }

void train(Sequential& model, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh, int steps) {
  for (int step = 0; step < steps; ++step) {
    auto closure = [&] {
      optimizer.zero_grad();
      auto x = distribute_tensor(waves({4, 6}, 0.1 + step).to(at::kFloat), mesh, {Replicate()}, std::nullopt);
      auto loss = model->forward(x).square().sum();
      loss.backward();
      return full_tensor(loss);
    };
    optimizer.step(closure);
  }
}

// Two runs, one of which is saved and loaded into a new model half-way, end in the same values.
template <class Optimizer, class Options>
void expect_same_after_loading(Options options) {
  for_each_world({1, 2}, [&](int64_t n) {
    TestFolder folder("optimizers");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    auto make = [&](int seed) {
      torch::manual_seed(seed);
      auto model = small_model();
      distribute_module(*model, mesh, [](auto& name, auto& module, auto& mesh) {
        if (name == "0") distribute_parameter(module, "weight", mesh, {Shard(0)});
        if (name == "2") distribute_parameter(module, "weight", mesh, {Shard(1)});
      });
      return model;
    };
    auto first = make(1), second = make(2);
    Optimizer one(first->parameters(), options), two(second->parameters(), Options(0.5));
    train(first, one, mesh, 3);
    checkpoint::save(folder / "c", {{"model", first}, {"optimizer", one}});
    checkpoint::load(folder / "c", {{"model", second}, {"optimizer", two}});
    train(first, one, mesh, 2);
    train(second, two, mesh, 2);
    for (auto& item : first->named_parameters()) {
      EXPECT_TRUE(
          full_tensor(item.value().detach()).equal(full_tensor(second->named_parameters()[item.key()].detach())))
          << item.key() << " of " << c10::demangle_type<Optimizer>();
    }
    for (auto& item : first->named_buffers())
      EXPECT_TRUE(full_tensor(item.value()).equal(full_tensor(second->named_buffers()[item.key()]))) << item.key();
  });
}

TEST(Checkpoint, TrainingGoesOnAsIfNothingHadHappened) {
  using namespace torch::optim;
  expect_same_after_loading<SGD>(SGDOptions(0.01).momentum(0.9).nesterov(true));
  expect_same_after_loading<Adam>(AdamOptions(0.01).amsgrad(true).betas({0.8, 0.99}));
  expect_same_after_loading<AdamW>(AdamWOptions(0.01));
  expect_same_after_loading<Adagrad>(AdagradOptions(0.01).lr_decay(0.1));
  expect_same_after_loading<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true));
  expect_same_after_loading<LBFGS>(LBFGSOptions(0.1).max_iter(3));
}

TEST(Checkpoint, OfAFullyShardedModelLoadsIntoAPlainOne) {
  for_each_world({2, 4}, [](int64_t n) {
    TestFolder folder("fsdp");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    torch::manual_seed(1);
    auto model = Sequential(Linear(6, 5), Linear(5, 3));
    auto plain = full_state_dict(*model);
    fully_shard(*model, mesh);
    model->forward(at::ones({2, 6}));
    checkpoint::save(folder / "c", {{"", model}});
    auto other = Sequential(Linear(6, 5), Linear(5, 3));
    checkpoint::load(folder / "c", {{"", other}});
    for (auto& item : other->named_parameters()) EXPECT_TRUE(item.value().equal(plain[item.key()])) << item.key();
    auto third = Sequential(Linear(6, 5), Linear(5, 3));
    fully_shard(*third, mesh);
    checkpoint::load(folder / "c", {{"", third}});
    auto found = full_state_dict(*third);
    for (auto& item : plain) EXPECT_TRUE(found[item.key()].equal(item.value())) << item.key();
  });
}

TEST(Checkpoint, NamesThatDoNotFitAreListedAtOnce) {
  in_every_world([] {
    TestFolder folder("names");
    checkpoint::save(folder / "c",
                     {{"m.weight", at::zeros({2})}, {"m.bias", at::zeros({3})}, {"m.more", at::zeros({1})}});
    struct Model : torch::nn::Module {
      Model() { register_parameter("wieght", at::zeros({2})), register_parameter("bias", at::zeros({4})); }
    } model;
    EXPECT_EQ(error_text<c10::Error>([&] { checkpoint::load(folder / "c", {{"m", model}}); }),
              "[checkpoint::load] " + (folder / "c") +
                  " does not fit what is loaded:\n"
                  "  missing in the checkpoint (1):\n    m.wieght (the checkpoint has \"m.weight\")\n"
                  "  unexpected in the checkpoint (2):\n    m.more\n    m.weight\n"
                  "  of another shape or kind (1):\n    m.bias: [3] in the checkpoint, [4] here\n"
                  "Rename with LoadOptions::rename, or load what fits with strict = false.");
    auto loaded = checkpoint::load(folder / "c", {{"m", model}}, {.strict = false});
    EXPECT_EQ(loaded.missing(), std::vector<std::string>{"m.wieght"});
    EXPECT_EQ(loaded.unexpected(), (std::vector<std::string>{"m.more", "m.weight"}));
    EXPECT_EQ(loaded.mismatched().size(), 1u);
  });
}

TEST(Checkpoint, NamesMayBeTranslated) {
  in_every_world([] {
    TestFolder folder("rename");
    checkpoint::save(folder / "c", {{"old", at::ones({2})}});
    auto x = at::zeros({2}, at::kHalf);
    checkpoint::load(folder / "c", {{"new", x}}, {.rename = [](auto& name) { return name == "new" ? "old" : name; }});
    EXPECT_TRUE(x.equal(at::ones({2}, at::kHalf)));
  });
}

TEST(Checkpoint, OfAnotherOptimizerIsRefused) {
  in_every_world([] {
    TestFolder folder("other");
    auto model = Linear(2, 2);
    torch::optim::Adam adam(model->parameters());
    checkpoint::save(folder / "c", {{"model", model}, {"o", adam}});
    torch::optim::SGD sgd(model->parameters(), 0.1);
    EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::load(folder / "c", {{"model", model}, {"o", sgd}}); }),
              "[checkpoint::load] the optimizer \"o\" is of the kind SGD, but \"Adam\" in the checkpoint. Make it of "
              "that kind.");
  });
}

TEST(Checkpoint, TorchSaveSaysWhatToCall) {
  in_every_world([] {
    TestFolder folder("torch");
    auto model = Linear(2, 2);
    distribute_module(*model, init_device_mesh(c10::kCPU, {current_world().size()}));
    auto text = error_text<c10::Error>([&] { torch::save(model, folder / "m.pt"); });
    EXPECT_NE(text.find("To save a module, use checkpoint::save or"), std::string::npos) << text;
    auto plain = Linear(2, 2);
    if (TestFolder::leads()) torch::save(plain, folder / "plain.pt");
    TestFolder::meet();
    text = error_text<c10::Error>([&] { torch::load(model, folder / "plain.pt"); });
    EXPECT_NE(text.find("To load a module, as torch::load does by this op, use checkpoint::load"), std::string::npos)
        << text;
  });
}

TEST(Checkpoint, LatestIsTheNewestCompleteOneAndKeepRemovesTheOldest) {
  in_every_world([] {
    TestFolder folder("latest");
    EXPECT_EQ(error_text<c10::Error>([&] { checkpoint::latest(folder / "runs"); }),
              "[checkpoint::latest] there is no complete checkpoint in " + (folder / "runs") + ".");
    for (auto* name : {"b", "c", "a", "d"})
      checkpoint::save(folder / "runs/" + name, {{"x", at::ones({2})}}, {.keep = 3});
    EXPECT_EQ(checkpoint::complete(folder / "runs"),
              (std::vector<std::string>{folder / "runs/c", folder / "runs/a", folder / "runs/d"}));
    EXPECT_EQ(checkpoint::latest(folder / "runs"), folder / "runs/d");
    TestFolder::meet();
    checkpoint::save(folder / "runs/c", {{"x", at::zeros({2})}});  // again
    EXPECT_EQ(checkpoint::latest(folder / "runs"), folder / "runs/c");
    TestFolder::meet();
  });
}

TEST(Checkpoint, AsynchronouslySavedIsWhatWasThereAtTheCall) {
  in_every_world([] {
    TestFolder folder("async");
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    auto x = distribute_tensor(at::ones({7, 3}), mesh, {Shard(0)}, std::nullopt);
    auto pending = checkpoint::save_async(folder / "c", {{"x", x}, {"step", 1}});
    x.zero_();
    pending.wait();
    EXPECT_TRUE(pending.done());
    auto y = at::zeros({7, 3});
    EXPECT_EQ(checkpoint::load(folder / "c", {{"x", y}}).integer("step"), 1);
    EXPECT_TRUE(y.equal(at::ones({7, 3})));
  });
}

TEST(Checkpoint, OfRanksThatSaveDifferentThingsIsRefused) {
  if (!process_world() || process_world()->size() == 1) GTEST_SKIP() << "simulated ranks save the same things";
  TestFolder folder("differ");
  auto text = error_text<c10::Error>([&] { checkpoint::save(folder / "c", {{"step", rank() == 1 ? 2 : 1}}); });
  EXPECT_EQ(text,
            "[checkpoint::save] " + (folder / "c") +
                " was not written. rank 0 and rank 1 save different things: \"step\" is 1 on rank 0 and 2 on rank 1. "
                "All ranks have to give the same names, and equal numbers and texts");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

}  // namespace
}  // namespace intarsia::checkpoint_save_test
