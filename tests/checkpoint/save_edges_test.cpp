// Names, tensors and places at the edges of what can be saved.

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/nn/distribute_module.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::checkpoint_save_edges_test {
namespace {

namespace fs = std::filesystem;

TEST(CheckpointEdges, AnyNameComesBack) {
  in_every_world([] {
    TestFolder folder("names-of-all-kinds");
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    checkpoint::Items saved, loaded;
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    for (std::string name : {"a", "a[0:2, 0:3]", "a[0:2, 0:3] (2)", "a/b", "../a", ".", "__metadata__",
                             "sn\xC3\xB6w \xE2\x9D\x84", "\"'\\", "a b\nc", "checksum", "a.b.c", ""}) {
      auto whole = waves({5, 3}, 0.1 * pairs.size());
      pairs.emplace_back(whole, at::zeros({5, 3}, at::kDouble));
      saved.emplace_back(name, distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt));
      loaded.emplace_back(name, pairs.back().second);
    }
    checkpoint::save(folder / "c", saved);
    checkpoint::load(folder / "c", loaded);
    for (size_t i = 0; i < pairs.size(); ++i) EXPECT_TRUE(pairs[i].first.equal(pairs[i].second)) << saved[i].first;
    EXPECT_TRUE(checkpoint::problems_of(folder / "c").empty());
  });
}

TEST(CheckpointEdges, NamesThatNobodyCanReadAreRefused) {
  in_every_world([] {
    TestFolder folder("bad-names");
    auto text = error_text<c10::Error>([&] { checkpoint::save(folder / "c", {{"\xFF\xFE", at::ones({2})}}); });
    auto expected =
        "[checkpoint::save] " + (folder / "c") + " was not written. rank 0: a name is not UTF-8";  // it has the tensor
    for (int64_t r = 1; r < current_world().size(); ++r)
      expected += c10::str("; rank ", r, ": a name or a text is not UTF-8");
    EXPECT_EQ(text, expected);
    EXPECT_EQ(
        error_text<c10::Error>([&] { checkpoint::export_full(folder / "hf", {{"__metadata__", at::ones({2})}}); }),
        "[checkpoint::export_full] a file cannot hold a tensor called \"__metadata__\": the format safetensors keeps "
        "this name");
    EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::save(folder / "c", {{"x", 1}, {"x", 2}}); }),
              "[checkpoint::save] \"x\" is given twice. Give each item a unique name.");
    EXPECT_FALSE(fs::exists(folder / "c"));
  });
}

TEST(CheckpointEdges, AnyTensorComesBack) {
  in_every_world([] {
    TestFolder folder("tensors-of-all-kinds");
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    auto cut = [&](const at::Tensor& x) { return distribute_tensor(x, mesh, {Shard(0)}, std::nullopt); };
    auto wide = waves({6, 4});
    std::vector<at::Tensor> all = {at::zeros({0}),
                                   at::zeros({3, 0, 2}),
                                   at::scalar_tensor(3),
                                   wide.t(),
                                   wide.slice(1, 0, 4, 2),
                                   at::ones({1}).expand({7}),
                                   at::complex(wide, wide).to(at::kComplexFloat).conj(),
                                   cut(wide).t(),
                                   cut(wide).slice(1, 1, 3),
                                   cut(at::zeros({0, 4})),
                                   at::ones({}, at::kBool)};
    for (size_t i = 0; i < all.size(); ++i) {
      checkpoint::save(folder / "c", {{"x", all[i]}});
      auto plain = at::zeros(all[i].sizes(), all[i].scalar_type());
      checkpoint::load(folder / "c", {{"x", plain}});
      auto goal = is_dtensor(all[i]) ? full_tensor(all[i]) : all[i];
      EXPECT_TRUE(plain.equal(goal.resolve_conj())) << i;
    }
  });
}

TEST(CheckpointEdges, TensorsThatEndWithinTheLargePagesOfAFileComeBack) {
  in_every_world([] {
    TestFolder folder("pages");
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    constexpr int64_t kMiB = 1 << 20;
    checkpoint::NamedState saved, loaded;
    for (int64_t bytes : {int64_t{700}, 3 * kMiB + 5, 2 * kMiB, 4 * kMiB - 7, int64_t{1}, 9 * kMiB + 1}) {
      auto whole = at::arange(bytes, at::kInt).remainder_(251).to(at::kByte);
      saved.tensors.emplace_back(std::to_string(bytes), distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt));
      loaded.tensors.emplace_back(std::to_string(bytes), at::zeros({bytes}, at::kByte));
    }
    for (bool asynchronous : {false, true}) {
      asynchronous ? checkpoint::save_async(folder / "c", {{"x", saved}}).wait()
                   : checkpoint::save(folder / "c", {{"x", saved}});
      for (auto& [name, tensor] : loaded.tensors) tensor.zero_();
      checkpoint::load(folder / "c", {{"x", loaded}});
      for (size_t i = 0; i < saved.tensors.size(); ++i)
        EXPECT_TRUE(loaded.tensors[i].second.equal(full_tensor(saved.tensors[i].second))) << saved.tensors[i].first;
    }
  });
}

TEST(CheckpointEdges, WhatCannotBeStoredOrReadIntoIsAnErrorOnAllRanks) {
  in_every_world([] {
    TestFolder folder("kinds");
    auto plain = [](const at::Tensor& odd) {
      return process_world() && rank() ? at::ones({2}) : odd;
    };  // odd on the first rank
    std::string first = process_world() && rank() ? "rank 0: " : "";
    auto save = [&](const at::Tensor& x) {
      return error_text<c10::Error>([&] { checkpoint::save(folder / "c", {{"x", x}}); });
    };
    EXPECT_EQ(save(plain(at::ones({2}).to_sparse())), "[checkpoint::save] " + first +
                                                          "\"x\" is of the layout Sparse, and files hold "
                                                          "strided tensors. Save to_dense() of it, or its parts.");
    EXPECT_EQ(save(plain(at::ones({2}, at::kMeta))),
              "[checkpoint::save] " + first + "\"x\" is on the meta device and has no values. Leave it out.");
    EXPECT_EQ(save(plain(at::ones({2}, at::kComplexDouble))),
              "[checkpoint::save] " + first + "\"x\": the format safetensors has no name for ComplexDouble");
    checkpoint::save(folder / "c", {{"x", at::ones({2})}, {"step", 1}});
    auto load = [&](const at::Tensor& x) {
      return error_text<c10::Error>([&] { checkpoint::load(folder / "c", {{"x", x}, {"stpe", 0}}); });
    };
    EXPECT_EQ(load(at::ones({2}, at::kMeta)),
              "[checkpoint::load] \"x\" is on the meta device and has no memory to read into. Give it "
              "some first, as to_empty() does in Python.");
    EXPECT_EQ(load(at::ones({2}, at::kLong)),
              "[checkpoint::load] " + (folder / "c") +
                  " does not fit what is loaded:\n  missing in the checkpoint (1):\n    "
                  "stpe (the checkpoint has \"step\")\n  of another shape or kind (1):\n    x: Float in the "
                  "checkpoint, Long here, which "
                  "cannot hold its values\nRename with LoadOptions::rename, or load what fits with strict = false.");
  });
}

TEST(CheckpointEdges, ALoadFillsTensorsOfAnyStrides) {
  in_every_world([] {
    TestFolder folder("strides");
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    auto whole = waves({6, 5});
    checkpoint::save(folder / "c", {{"x", whole}});
    auto turned = at::zeros({5, 6}, at::kDouble).t(), part = at::zeros({6, 10}, at::kDouble);
    auto cut = zeros({5, 6}, mesh, {Shard(0)}, at::kDouble);
    checkpoint::load(folder / "c", {{"x", turned}});
    checkpoint::load(folder / "c", {{"x", part.slice(1, 0, 10, 2)}});
    checkpoint::load(folder / "c", {{"x", cut.t()}});
    EXPECT_TRUE(turned.equal(whole) && part.slice(1, 0, 10, 2).equal(whole) && full_tensor(cut).t().equal(whole));
    EXPECT_EQ(part.slice(1, 1, 10, 2).abs().sum().item<double>(), 0);
  });
}

TEST(CheckpointEdges, TiedParametersAndUndefinedBuffersAreNoTrouble) {
  in_every_world([] {
    TestFolder folder("tied");
    struct Model : torch::nn::Module {
      Model() {
        weight = register_parameter("weight", at::ones({4, 3}));
        tied = register_parameter("tied", weight);
        register_buffer("none", at::Tensor());
      }
      at::Tensor weight, tied;
    } model, other;
    torch::optim::SGD optimizer({model.weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
    model.weight.square().sum().backward();
    optimizer.step();
    checkpoint::save(folder / "c", {{"m", model}, {"o", optimizer}});
    torch::optim::SGD fresh({other.weight}, torch::optim::SGDOptions(0.2).momentum(0.9));
    checkpoint::load(folder / "c", {{"m", other}, {"o", fresh}});
    EXPECT_TRUE(other.weight.equal(model.weight) && other.tied.is_alias_of(other.weight));
  });
}

TEST(CheckpointEdges, AStateIsMadeAsTheCheckpointHasIt) {
  in_every_world([] {
    TestFolder folder("maker");
    checkpoint::NamedState state{{{"a", at::arange(3)}, {"b", at::ones({2, 2})}}};
    checkpoint::save(folder / "c", {{"o", state}, {"o.step", 4}, {"o.odd", 1}, {"other", at::ones({1})}});
    std::map<std::string, at::Tensor> made;
    bool asks_for_all = false;
    checkpoint::StateMaker maker{[&](auto& scope, auto& index, auto& rename, auto& wanted) {
      for (auto* name : {".a", ".b"}) {
        auto& form = index.tensors.at(rename(scope + name));
        wanted.tensors.emplace_back(scope + name, made[name] = at::zeros(form.shape, form.dtype));
      }
      wanted.used_values.insert("o.step");
      if (asks_for_all) wanted.used_values.insert("o.odd");
    }};
    auto text = error_text<c10::Error>([&] { checkpoint::load(folder / "c", {{"o", maker}}); });
    EXPECT_EQ(text, "[checkpoint::load] " + (folder / "c") +
                        " does not fit what is loaded:\n  unexpected in the checkpoint (1):\n    "
                        "o.odd\nRename with LoadOptions::rename, or load what fits with strict = false.");
    asks_for_all = true;
    EXPECT_EQ(checkpoint::load(folder / "c", {{"o", maker}}).integer("o.step"), 4);
    EXPECT_TRUE(made[".a"].equal(at::arange(3)) && made[".b"].equal(at::ones({2, 2})));
    EXPECT_EQ(error_text<c10::Error>([&] { checkpoint::save(folder / "d", {{"o", maker}}); }),
              "[checkpoint::save] \"o\" can only be loaded into. Give its tensors and numbers as separate items.");
  });
}

TEST(CheckpointEdges, APlaceIsAFolderThatCanBeNamed) {
  in_every_world([] {
    TestFolder folder("places");
    auto x = at::ones({3});
    for (std::string place : {"", "/", ".", "a/..", "a.saving-b"}) {
      EXPECT_EQ(
          error_text<c10::ValueError>([&] { checkpoint::save(place, {{"x", x}}); }),
          "[checkpoint::save] \"" + place + "\" is no name for a checkpoint. Name a folder, such as runs/7/step-100.");
      error_text<c10::ValueError>([&] { checkpoint::export_full(place, {{"x", x}}); });
    }
    checkpoint::save(folder / "a.saving-b/with slash///", {{"x", x}});
    checkpoint::export_full(folder / "hf//", {{"x", x}});
    EXPECT_TRUE(fs::exists(folder / "hf/model.safetensors"));
    EXPECT_EQ(checkpoint::latest(folder / "a.saving-b"), folder / "a.saving-b/with slash");
    error_text<c10::Error>([&] { checkpoint::save("/proc/intarsia/c", {{"x", x}}); });  // nobody can write there
  });
}

TEST(CheckpointEdges, ALinkToAFolderIsAsGoodAsTheFolder) {
  in_every_world([] {
    TestFolder folder("links");
    if (TestFolder::leads())
      fs::create_directories(folder / "far"), fs::create_directory_symlink("far", folder / "near");
    TestFolder::meet();
    for (double value : {1, 2}) checkpoint::save(folder / "near/c", {{"x", at::full({3}, value)}});
    auto x = at::zeros({3});
    checkpoint::load(folder / "far/c", {{"x", x}});
    EXPECT_TRUE(x.equal(at::full({3}, 2)));
    EXPECT_EQ(checkpoint::complete(folder / "far").size(), 1u);
  });
}

TEST(CheckpointEdges, FoldersThatAreNoCheckpointsAreLeftAlone) {
  in_every_world([] {
    TestFolder folder("foreign");
    if (TestFolder::leads()) {
      for (auto* name : {"empty", "other", "hf"}) fs::create_directories(folder / name);
      write_file(folder / "other/index.json", "{\"a\": 1}");
      write_file(folder / "hf/model.safetensors", "x");
      write_file(folder / "file", "x");
      fs::create_directory_symlink("nowhere", folder / "dangling");
    }
    TestFolder::meet();
    for (auto* name : {"a", "b", "c"}) checkpoint::save(folder / name, {{"x", at::ones({2})}}, {.keep = 1});
    EXPECT_EQ(checkpoint::complete(folder.path()), std::vector<std::string>{folder / "c"});
    for (auto* name : {"empty", "other/index.json", "hf/model.safetensors", "file"})
      EXPECT_TRUE(fs::exists(folder / name)) << name;
    TestFolder::meet();
  });
}

// Bytes that this process has read, from files and over sockets.
int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  int64_t count = 0;
  io >> word >> count;
  return count;
}

TEST(CheckpointEdges, RowsThatAreWantedAsColumnsAreReadOnce) {
  for_each_world({4}, [](int64_t n) {
    TestFolder folder("rows");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    auto whole = at::arange(12 << 20, at::kInt).reshape({3 << 10, 4 << 10});  // 48 MiB
    checkpoint::save(folder / "c", {{"x", distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt)}});
    auto x = zeros(whole.sizes(), mesh, {Shard(1)}, at::kInt);
    auto before = bytes_read();
    checkpoint::load(folder / "c", {{"x", x}});
    // Its own share with the ends of slabs, and what others send; each by itself would read four shares.
    auto share = static_cast<double>(whole.nbytes()) * current_world().hosted().size() / n;
    EXPECT_LT(bytes_read() - before, 2.5 * share);
    EXPECT_TRUE(full_tensor(x).equal(whole));
  });
}

TEST(CheckpointEdges, DamageInWhatIsReadTogetherIsToldToAll) {
  for_each_world({2, 4}, [](int64_t n) {
    TestFolder folder("together");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    checkpoint::save(folder / "c", {{"x", distribute_tensor(waves({64, 64}), mesh, {Shard(0)}, std::nullopt)}});
    auto path = folder / ("c/rank-1-of-" + std::to_string(n) + ".safetensors");
    TestFolder::meet();
    if (TestFolder::leads()) {
      auto bytes = read_file(path);
      bytes.back() ^= 1;
      write_file(path, bytes);
    }
    TestFolder::meet();
    auto x = zeros({64, 64}, mesh, {Shard(1)}, at::kDouble);
    auto text = error_text<c10::Error>([&] { checkpoint::load(folder / "c", {{"x", x}}); });
    EXPECT_NE(text.find("tensor \"x\": the checksum of bytes"), std::string::npos) << text;
    EXPECT_NE(text.find(path), std::string::npos) << text;
    TestFolder::meet();
  });
}

TEST(CheckpointEdges, RanksThatLoadDifferentThingsTogetherAreToldSo) {
  if (!process_world() || process_world()->size() == 1) GTEST_SKIP() << "simulated ranks do the same things";
  TestFolder folder("different");
  auto n = world_size();
  auto mesh = init_device_mesh(c10::kCPU, {n});
  checkpoint::save(folder / "c", {{"x", distribute_tensor(waves({64, 64}), mesh, {Shard(0)}, std::nullopt)}});
  auto x = zeros({64, 64}, mesh, {rank() == 1 ? Placement(Replicate()) : Shard(1)}, at::kDouble);
  auto text = error_text<c10::Error>([&] { checkpoint::load(folder / "c", {{"x", x}}); });
  EXPECT_NE(text.find("rank 0 and rank 1 load different things onto DeviceMesh(cpu, " + std::to_string(n) + ")"),
            std::string::npos)
      << text;
}

TEST(CheckpointEdges, AnErrorOnOneRankIsOneOnAll) {
  if (!process_world() || process_world()->size() == 1) GTEST_SKIP() << "simulated ranks do the same things";
  TestFolder folder("one-rank");
  auto odd = rank() == 1 ? at::Tensor() : at::ones({2});
  for (auto& name : {std::string("x"), std::string(1000, 'y')}) {  // ranks tell each other short and long texts
    for (bool asynchronous : {false, true}) {
      auto text = error_text<c10::Error>([&] {
        asynchronous ? checkpoint::save_async(folder / "c", {{name, odd}}).wait()
                     : checkpoint::save(folder / "c", {{name, odd}});
      });
      auto expected = (rank() == 1 ? "[checkpoint::save] \"" : "rank 1: \"") + name + "\" is an undefined tensor";
      EXPECT_NE(text.find(expected), std::string::npos) << text;
    }
  }
  TestFolder::meet();
  EXPECT_TRUE(fs::is_empty(folder.path()));
  TestFolder::meet();
}

}  // namespace
}  // namespace intarsia::checkpoint_save_edges_test
