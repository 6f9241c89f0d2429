// embedding with a cut table, one_hot.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"
#include "tests/support/worlds.h"

namespace intarsia::ops_embedding_test {
namespace {

DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }
at::Tensor ids() { return (at::arange(6) * 3 % 7).reshape({2, 3}); }

TEST(Embedding, IsExactForEveryCutOfTheTable) {
  for (int64_t n : {2, 3, 4}) {
    auto world = simulate(n);
    for (auto table : {"[R]", "[S(0)]", "[S(1)]"}) {
      for (auto indices : {"[R]", "[S(0)]", "[S(1)]"}) {
        for (int64_t padding : {-1, 3}) {
          auto look_up = [&](auto& t) { return at::embedding(t[0], t[1], padding); };
          EXPECT_EQ(compare(look_up, {waves({7, 5}), ids()}, line(n), {table, indices}), "")
              << table << " " << indices << " " << padding;
        }
        auto by_frequency = [&](auto& t) { return at::embedding(t[0], t[1], -1, true); };
        EXPECT_EQ(compare(by_frequency, {waves({7, 5}), ids()}, line(n), {table, indices}), "")
            << table << " " << indices;
      }
    }
  }
}

TEST(Embedding, OnTwoAxesIsExact) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  auto look_up = [](auto& t) { return at::embedding(t[0], t[1], 1); };
  for (auto table : {"[R, S(0)]", "[S(0), S(0)]", "[S(1), S(0)]", "[R, S(1)]"}) {
    for (auto indices : {"[R, R]", "[S(0), R]", "[S(0), S(1)]"}) {
      EXPECT_EQ(compare(look_up, {waves({7, 5}), ids()}, mesh, {table, indices}), "") << table << " " << indices;
    }
  }
}

TEST(EmbeddingBag, OfTensorsOnSeveralMeshesIsAnError) {
  auto world = simulate(4);
  auto grid = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  auto table = lay_out(waves({7, 5}), line(4), {Shard(0)});
  auto bags = [&](const DeviceMesh& places, const DeviceMesh& offsets) {
    auto whole = [](const at::Tensor& t, const DeviceMesh& mesh) {
      return lay_out(t, mesh, Placements(mesh.ndim(), Replicate()));
    };
    auto starts = at::tensor({0, 2}, at::kLong);
    return error_text<c10::Error>(
        [&] { at::embedding_bag(table, whole(at::arange(6), places), whole(starts, offsets)); });
  };
  EXPECT_NE(bags(grid, line(4)).find("different meshes"), std::string::npos);
  EXPECT_NE(bags(line(4), grid).find("different meshes"), std::string::npos);
  EXPECT_EQ(bags(line(4), line(4)), "no error");
}

TEST(EmbeddingBag, IsExactOnMeshesOfSeveralShapes) {
  auto places = at::tensor({0, 3, 3, 6, 1, 5}, at::kLong), offsets = at::tensor({0, 2, 5}, at::kLong);
  for (int64_t mode : {0, 1, 2}) {
    auto bags = [=](auto& t) { return std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, mode)); };
    for_each_world({2, 3, 4}, [&](int64_t n) {
      for (auto& shape : mesh_shapes(n)) {
        auto mesh = init_device_mesh(at::kCPU, shape);
        for (auto table : shape.size() == 1 ? std::vector<std::string>{"[R]", "[S(0)]", "[S(1)]"}
                                            : std::vector<std::string>{"[S(0), S(0)]", "[S(0), S(1)]", "[S(1), R]"}) {
          auto whole = shape.size() == 1 ? "[R]" : "[R, R]";
          auto inputs = {waves({7, 5}), places, offsets};
          EXPECT_EQ(compare(bags, inputs, mesh, {table, whole, whole}), "") << mode << table << " on " << n;
        }
      }
    });
  }
}

TEST(Embedding, WithACutVocabularyGathersNoTable) {
  auto world = simulate(4);
  auto table = lay_out(waves({10, 3}), line(4), {Shard(0)}).requires_grad_();
  auto indices = lay_out(ids(), line(4), {Replicate()});
  CommDebugMode comms;
  auto out = at::embedding(table, indices);
  EXPECT_EQ(str(placements_of(out)), "[P(sum)]");
  EXPECT_EQ(comms.text(), "");
  auto grad = torch::autograd::grad({out}, {table}, {lay_out(waves({2, 3, 3}), line(4), {Replicate()})})[0];
  EXPECT_EQ(str(placements_of(grad)), "[S(0)]");
  EXPECT_EQ(comms.text(), "");
}

TEST(Embedding, RefusesIndicesOutOfRangeAsThePlainOpDoes) {
  auto world = simulate(2);
  auto table = lay_out(waves({6, 3}), line(2), {Shard(0)}), indices = lay_out(ids(), line(2), {Replicate()});
  EXPECT_EQ(error_text<c10::IndexError>([&] { at::embedding(table, indices); }), "index out of range in self");
}

TEST(OneHot, KeepsTheCut) {
  auto world = simulate(3);
  for (auto at : {"[R]", "[S(0)]", "[S(1)]"}) {
    auto cut = lay_out(ids(), line(3), parse_placements(at));
    EXPECT_EQ(difference(full_tensor(at::one_hot(cut, 9)), at::one_hot(ids(), 9)), "");
    EXPECT_EQ(difference(full_tensor(at::one_hot(cut)), at::one_hot(ids())), "");
    EXPECT_EQ(str(placements_of(at::one_hot(cut))), at);
  }
  EXPECT_EQ(error_text<c10::Error>([&] { at::one_hot(lay_out(ids(), line(3), {Shard(0)}), 3); }),
            "Class values must be smaller than num_classes.");
}

}  // namespace
}  // namespace intarsia::ops_embedding_test
