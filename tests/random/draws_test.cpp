// Random numbers are those of the plain op for the same seed, whatever the cut.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia {
namespace {

struct Draw {
  const char* name;
  void (*fill)(at::Tensor&);
  at::ScalarType dtype = at::kFloat;
};

const std::vector<Draw> kDraws = {
    {"uniform_", [](at::Tensor& t) { t.uniform_(-1, 2); }},
    {"uniform_ of doubles", [](at::Tensor& t) { t.uniform_(); }, at::kDouble},
    {"uniform_ of halves", [](at::Tensor& t) { t.uniform_(); }, at::kBFloat16},
    {"normal_", [](at::Tensor& t) { t.normal_(1, 0.5); }},
    {"normal_ of doubles", [](at::Tensor& t) { t.normal_(); }, at::kDouble},
    {"log_normal_", [](at::Tensor& t) { t.log_normal_(); }},
    {"cauchy_", [](at::Tensor& t) { t.cauchy_(); }},
    {"geometric_", [](at::Tensor& t) { t.geometric_(0.3); }},
    {"random_", [](at::Tensor& t) { t.random_(); }, at::kLong},
    {"random_ below", [](at::Tensor& t) { t.random_(17); }, at::kInt},
    {"random_ between", [](at::Tensor& t) { t.random_(-5, 17); }, at::kLong},
    {"bernoulli_", [](at::Tensor& t) { t.bernoulli_(0.3); }},
    {"exponential_", [](at::Tensor& t) { t.exponential_(2); }},
};

struct BadDraw {
  const char* name;
  at::Tensor (*draw)(const at::Tensor&);
};

// Of numbers from -1 to 1.
const std::vector<BadDraw> kBadDraws = {
    {"multinomial", [](const at::Tensor& t) { return at::multinomial(t, 2); }},
    {"bernoulli", [](const at::Tensor& t) { return at::bernoulli(t); }},
    {"poisson", [](const at::Tensor& t) { return at::poisson(t); }},
    {"normal", [](const at::Tensor& t) { return at::normal(0, t); }},
};

TEST(Draws, OfBadNumbersAreThePlainErrorOnEveryRank) {
  auto numbers = at::linspace(-1, 1, 15).reshape({5, 3});
  for_each_world({1, 2, 3, 4}, [&](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& bad : kBadDraws) {
      for (auto& cut : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
        auto error = [&](const at::Tensor& t) { return error_text<c10::Error>([&] { bad.draw(t); }); };
        EXPECT_EQ(error(lay_out(numbers, mesh, {cut})), error(numbers)) << bad.name << " " << str(cut);
      }
    }
  });
}

at::Tensor plain(const Draw& draw, at::IntArrayRef shape) {
  torch::manual_seed(5);
  auto t = at::zeros(shape, draw.dtype);
  draw.fill(t);
  return t;
}

void expect_same(const Draw& draw, at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements) {
  auto expected = plain(draw, shape);
  auto after = at::rand({1});
  torch::manual_seed(5);
  auto t = zeros(shape, mesh, placements, draw.dtype);
  draw.fill(t);
  EXPECT_TRUE(full_tensor(t).equal(expected)) << draw.name << " of " << shape << " as " << str(placements);
  EXPECT_TRUE(at::rand({1}).equal(after)) << "the generator after " << draw.name << " of " << shape;
}

TEST(Draws, AreThoseOfThePlainOpWhateverTheCut) {
  for_each_world({2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& draw : kDraws) {
      for (auto& shape : std::vector<std::vector<int64_t>>{{5}, {7, 3}, {3, 5, 4}, {2, 1, 3, 17}, {0, 3}}) {
        for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) expect_same(draw, shape, mesh, {Shard(d)});
        expect_same(draw, shape, mesh, {StridedShard(0, 2)});
        expect_same(draw, shape, mesh, {Replicate()});
      }
    }
  });
}

TEST(Draws, OfLargeTensorsAreDrawnInChunks) {
  for_each_world({4}, [](int64_t n) {
    auto line = init_device_mesh(at::kCPU, {n});
    auto grid = init_device_mesh(at::kCPU, {2, n / 2});
    for (size_t i : {0, 3, 8}) {
      expect_same(kDraws[i], {65536 * 2 + 3}, line, {Shard(0)});
      expect_same(kDraws[i], {3, 70001}, line, {Shard(1)});
      expect_same(kDraws[i], {401, 3, 211}, grid, {Shard(2), Shard(0)});
      expect_same(kDraws[i], {401, 3, 211}, grid, {Shard(0), StridedShard(0, 3)});
    }
  });
}

TEST(Draws, OfATransposedTensorAreTheSameOnAllRanks) {
  for_each_world({2}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto t = at::transpose(zeros({4, 6}, mesh, {Replicate()}), 0, 1);
    t.normal_();
    auto cut = redistribute(t, {Shard(0)});
    EXPECT_TRUE(full_tensor(cut).equal(full_tensor(t)));
  });
}

}  // namespace
}  // namespace intarsia
