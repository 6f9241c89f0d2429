// Files of safetensors from elsewhere and for others, and a checkpoint in words.

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/checkpoint/safetensors.h"
#include "intarsia/nn/distribute_module.h"
#include "tests/checkpoint/folders.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::checkpoint_save_for_others_test {
namespace {

TEST(CheckpointForOthers, AShardedModelIsExportedAndLoadedInEveryLayout) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    TestFolder folder("export");
    auto mesh = init_device_mesh(c10::kCPU, {n});
    auto a = waves({7, 5}), b = waves({6}), c = at::arange(12, at::kInt).reshape({3, 4});
    for (int64_t most : {int64_t{1} << 30, int64_t{100}}) {
      checkpoint::export_full(folder / "hf",
                              {{"a", distribute_tensor(a, mesh, {Shard(1)}, std::nullopt)},
                               {"b", distribute_tensor(b, mesh, {Shard(0)}, std::nullopt)},
                               {"c", c}},
                              {.file_bytes = most});
      EXPECT_EQ(std::filesystem::exists(folder / "hf/model.safetensors.index.json"), most == 100);
      EXPECT_EQ(std::filesystem::exists(folder / "hf/model.safetensors"), most != 100);
      for (auto* to : {"[R]", "[S(0)]", "[S(1)]", "[SS(1, 2)]"}) {
        auto x = zeros({7, 5}, mesh, parse_placements(to), at::kDouble),
             z = zeros({3, 4}, mesh, parse_placements(to), at::kHalf);
        checkpoint::load(folder / "hf", {{"a", x}, {"c", z}});
        EXPECT_TRUE(full_tensor(x).equal(a)) << to;
        EXPECT_TRUE(full_tensor(z).equal(c.to(at::kHalf))) << to;
      }
      TestFolder::meet();
    }
  });
}

TEST(CheckpointForOthers, AModuleIsLoadedFromOneFileByOtherNames) {
  in_every_world([] {
    TestFolder folder("onefile");
    auto model = torch::nn::Linear(6, 4);
    auto rename = [](const std::string& name) { return "transformer." + name; };
    checkpoint::export_full(folder / "hf", {{"", model}}, {.rename = rename});
    auto other = torch::nn::Linear(6, 4);
    auto mesh = init_device_mesh(c10::kCPU, {current_world().size()});
    distribute_parameter(*other, "weight", mesh, {Shard(1)}, std::nullopt);
    checkpoint::load(folder / "hf/model.safetensors", {{"", other}}, {.rename = rename});
    auto plain = torch::nn::Linear(6, 4);
    checkpoint::load(folder / "hf", {{"", plain}}, {.rename = rename});
    EXPECT_TRUE(full_tensor(other->weight.detach()).equal(plain->weight));
    EXPECT_TRUE(other->bias.equal(plain->bias));
    EXPECT_EQ(error_text<c10::ValueError>([&] { checkpoint::export_full(folder / "x", {{"step", 1}}); }),
              "[checkpoint::export_full] \"step\" is no tensor, and files for others hold tensors only. Leave it out.");
  });
}

TEST(CheckpointForOthers, RowsNarrowerThanAReadAreStillOnlyOnesOwn) {
  for_each_world({2}, [](int64_t) {
    TestFolder folder("narrow");
    auto mesh = init_device_mesh(c10::kCPU, {2});
    auto whole = at::arange(3000 * 40).reshape({3000, 40}), wide = at::arange(5 * 4000).reshape({5, 4000});
    checkpoint::export_full(folder / "hf", {{"x", whole}, {"y", wide}});
    auto x = zeros({3000, 40}, mesh, {Shard(1)}, at::kLong), y = zeros({5, 4000}, mesh, {Shard(1)}, at::kLong);
    checkpoint::load(folder / "hf", {{"x", x}, {"y", y}});
    EXPECT_TRUE(full_tensor(x).equal(whole));
    EXPECT_TRUE(full_tensor(y).equal(wide));
  });
}

TEST(CheckpointForOthers, IsConvertedToAnotherNumberOfFiles) {
  for_each_world({2}, [](int64_t) {
    TestFolder folder("convert");
    auto mesh = init_device_mesh(c10::kCPU, {2});
    auto whole = waves({7, 3});
    checkpoint::save(
        folder / "two",
        {{"x", distribute_tensor(whole, mesh, {Shard(1)}, std::nullopt)}, {"s", at::scalar_tensor(3)}, {"step", 4}});
    checkpoint::export_full(folder / "hf", {{"x", whole}});
    TestFolder::meet();
    if (TestFolder::leads())
      checkpoint::convert(folder / "two", folder / "three", 3),
          checkpoint::convert(folder / "hf", folder / "from_hf", 2);
    TestFolder::meet();
    EXPECT_EQ(checkpoint::read_index(folder / "three").files.size(), 3u);
    auto x = at::zeros({7, 3}, at::kDouble), y = at::zeros({7, 3}, at::kDouble), s = at::zeros({});
    EXPECT_EQ(checkpoint::load(folder / "three", {{"x", x}, {"s", s}}).integer("step"), 4);
    checkpoint::load(folder / "from_hf", {{"x", y}});
    EXPECT_TRUE(x.equal(whole) && y.equal(whole) && s.item<float>() == 3);
    for (auto* name : {"two", "three", "from_hf", "hf"})
      EXPECT_TRUE(checkpoint::problems_of(folder / name).empty()) << name;
  });
}

TEST(CheckpointForOthers, IsDescribedInWords) {
  for_each_world({2}, [](int64_t) {
    TestFolder folder("words");
    auto mesh = init_device_mesh(c10::kCPU, {2}, {"tp"});
    checkpoint::save(folder / "c", {{"x", distribute_tensor(at::zeros({4, 2}), mesh, {Shard(0)}, std::nullopt)},
                                    {"plain", at::zeros({2}, at::kLong)},
                                    {"step", 4}});
    auto text = checkpoint::description(folder / "c");
    EXPECT_EQ(text.substr(0, text.find("\nA  rank-0-of-2.safetensors")),
              (folder / "c") + ": a checkpoint of 2 ranks, " +
                  text.substr(text.find("ranks, ") + 7, text.find('\n') - text.find("ranks, ") - 7) +
                  "\n\nplain  I64 [2]  plain\n    |AA| A[0:2]\nx      F32 [4, 2]  [S(0)] on DeviceMesh(cpu, tp=2)\n    "
                  "|AABB| "
                  "A[0:2, 0:2] B[2:4, 0:2]\n\nstep = 4\n");
    EXPECT_NE(checkpoint::listing(folder.path()).find("2 tensors, 2 files, 2 ranks"), std::string::npos);
    TestFolder::meet();
    auto path = folder / "c/rank-1-of-2.safetensors";
    if (TestFolder::leads()) {
      auto bytes = read_file(path);
      bytes.back() ^= 4;
      write_file(path, bytes);
      auto problems = checkpoint::problems_of(folder / "c");
      ASSERT_EQ(problems.size(), 1u);
      EXPECT_EQ(problems[0].substr(0, 12), "tensor \"x\": ");
    }
  });
}

}  // namespace
}  // namespace intarsia::checkpoint_save_for_others_test
