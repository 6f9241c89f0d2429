// Random numbers are those of the plain op for the same seed, whatever the cut.

#include <limits>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::random_draws_test {
namespace {

struct Draw {
  const char* name;
  void (*fill)(at::Tensor&);
  at::ScalarType dtype = at::kFloat;
};

const std::vector<Draw> kDraws = {
    {"uniform_", [](at::Tensor& t) { t.uniform_(-1, 2); }},
    {"uniform_ of doubles", [](at::Tensor& t) { t.uniform_(); }, at::kDouble},
    {"uniform_ of bfloat16", [](at::Tensor& t) { t.uniform_(); }, at::kBFloat16},
    {"uniform_ of complex numbers", [](at::Tensor& t) { t.uniform_(); }, at::kComplexFloat},
    {"normal_", [](at::Tensor& t) { t.normal_(1, 0.5); }},
    {"normal_ of doubles", [](at::Tensor& t) { t.normal_(); }, at::kDouble},
    {"normal_ of halves", [](at::Tensor& t) { t.normal_(); }, at::kHalf},
    {"normal_ of complex numbers", [](at::Tensor& t) { t.normal_(1, 3); }, at::kComplexDouble},
    {"log_normal_", [](at::Tensor& t) { t.log_normal_(); }},
    {"log_normal_ of doubles", [](at::Tensor& t) { t.log_normal_(1, 0.25); }, at::kDouble},
    {"log_normal_ of bfloat16", [](at::Tensor& t) { t.log_normal_(); }, at::kBFloat16},
    {"cauchy_", [](at::Tensor& t) { t.cauchy_(); }},
    {"geometric_", [](at::Tensor& t) { t.geometric_(0.3); }},
    {"geometric_ of integers", [](at::Tensor& t) { t.geometric_(0.3); }, at::kInt},
    {"random_", [](at::Tensor& t) { t.random_(); }, at::kLong},
    {"random_ of bytes", [](at::Tensor& t) { t.random_(); }, at::kByte},
    {"random_ of floats", [](at::Tensor& t) { t.random_(); }},
    {"random_ of bools", [](at::Tensor& t) { t.random_(); }, at::kBool},
    {"random_ below", [](at::Tensor& t) { t.random_(17); }, at::kInt},
    {"random_ between", [](at::Tensor& t) { t.random_(-5, 17); }, at::kLong},
    {"random_ between far ends", [](at::Tensor& t) { t.random_(-5, int64_t(1) << 40); }, at::kLong},
    {"random_ of all 64 bits",
     [](at::Tensor& t) { t.random_(std::numeric_limits<int64_t>::lowest(), std::optional<int64_t>()); }, at::kLong},
    {"bernoulli_", [](at::Tensor& t) { t.bernoulli_(0.3); }},
    {"bernoulli_ of bools", [](at::Tensor& t) { t.bernoulli_(0.3); }, at::kBool},
    {"bernoulli_ of doubles", [](at::Tensor& t) { t.bernoulli_(0.3); }, at::kDouble},
    {"exponential_", [](at::Tensor& t) { t.exponential_(2); }},
    {"exponential_ of doubles", [](at::Tensor& t) { t.exponential_(); }, at::kDouble},
};

struct BadDraw {
  const char* name;
  at::Tensor (*draw)(const at::Tensor&);
};

// Of numbers from -1 to 1.
const std::vector<BadDraw> kBadDraws = {
    {"multinomial", [](const at::Tensor& t) { return at::multinomial(t, 1); }},
    {"multinomial of several", [](const at::Tensor& t) { return at::multinomial(t, 2); }},
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

at::Tensor state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// The generator keeps a number from one draw to the next, now and then.
void seed(bool keeps_one) {
  torch::manual_seed(5);
  if (keeps_one) at::empty({3}).log_normal_();
}

void expect_same(const Draw& draw, at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 bool keeps_one = false) {
  seed(keeps_one);
  auto expected = at::zeros(shape, draw.dtype);
  draw.fill(expected);
  auto after = state();
  seed(keeps_one);
  auto t = zeros(shape, mesh, placements, draw.dtype);
  draw.fill(t);
  auto where = c10::str(draw.name, " of ", shape, " as ", str(placements), " on ", mesh.text());
  EXPECT_TRUE(state().equal(after)) << "the generator after " << where;
  EXPECT_TRUE(full_tensor(t).equal(expected)) << where;
}

TEST(Draws, AreThoseOfThePlainOpWhateverTheCut) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
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

TEST(Draws, OfManyNumbersAreThoseOfThePlainOpWhateverTheCut) {
  for_each_world({1, 2, 3, 4, 5, 8}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& draw : kDraws) {
      for (auto& shape :
           std::vector<std::vector<int64_t>>{{4099}, {2, 3333}, {67, 71}, {700, 5}, {3, 41, 37}, {16, 16, 16}}) {
        for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d)
          expect_same(draw, shape, mesh, {Shard(d)}, d % 2);
        expect_same(draw, shape, mesh, {StridedShard(0, 2)}, true);
        expect_same(draw, shape, mesh, {Replicate()});
      }
    }
  });
}

TEST(Draws, OfManyNumbersOnMeshesOfSeveralAxesAreThoseOfThePlainOp) {
  for_each_world({4, 6, 8}, [](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      if (shape.size() == 1) continue;
      auto mesh = init_device_mesh(at::kCPU, shape);
      for (auto& cut : std::vector<Placements>{{Shard(0), Shard(1)},
                                               {Shard(2), Shard(0)},
                                               {Shard(1), Shard(1)},
                                               {Replicate(), Shard(2)},
                                               {StridedShard(0, 3), Shard(0)},
                                               {Shard(0), StridedShard(0, 3)}}) {
        if (mesh.ndim() == 3) cut.insert(cut.begin(), Shard(1));
        for (auto& draw : kDraws) expect_same(draw, {7, 13, 31}, mesh, cut, true);
      }
    }
  });
}

TEST(Draws, OfLargeTensorsJump) {
  for_each_world({4}, [](int64_t n) {
    auto line = init_device_mesh(at::kCPU, {n});
    for (auto* name : {"uniform_", "normal_", "log_normal_", "bernoulli_"}) {
      auto draw = std::find_if(kDraws.begin(), kDraws.end(), [&](auto& d) { return d.name == std::string_view(name); });
      expect_same(*draw, {4001, 2003}, line, {Shard(0)}, true);
      expect_same(*draw, {3, 2700001}, line, {Shard(1)});
    }
  });
}

TEST(Draws, OfAGeneratorOfOnesOwnLeaveTheOthersAlone) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto mine = at::detail::createCPUGenerator(3), same = at::detail::createCPUGenerator(3);
    auto before = state();
    auto t = zeros({50, 80}, mesh, {Shard(1)});
    EXPECT_TRUE(full_tensor(t.normal_(0, 1, mine)).equal(at::zeros({50, 80}).normal_(0, 1, same)));
    EXPECT_TRUE(full_tensor(t.exponential_(1, mine)).equal(at::zeros({50, 80}).exponential_(1, same)));
    EXPECT_TRUE(mine.get_state().equal(same.get_state()));
    EXPECT_TRUE(state().equal(before));
  });
}

TEST(Draws, OfATransposedTensorAreThoseOfThePlainOp) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& draw : kDraws) {
      for (auto& cut : {Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2)), Placement(Replicate())}) {
        for (auto& shape : std::vector<std::vector<int64_t>>{{4, 6, 3}, {40, 6, 31}}) {
          seed(true);
          auto expected = at::zeros(shape, draw.dtype).permute({2, 0, 1});
          draw.fill(expected);
          auto after = state();
          seed(true);
          auto t = zeros(shape, mesh, {cut}, draw.dtype).permute({2, 0, 1});
          draw.fill(t);
          EXPECT_TRUE(full_tensor(t).equal(expected)) << draw.name << " of " << expected.sizes() << " as " << str(cut);
          EXPECT_TRUE(state().equal(after)) << "the generator after " << draw.name;
        }
      }
    }
  });
}

TEST(Draws, OfALocalTensorInAnotherOrderAreThoseOfThePlainOp) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    seed(false);
    auto expected = at::zeros({70, 60}).t().normal_();
    seed(false);
    auto t = lay_out(at::zeros({70, 60}).t(), mesh, {Shard(1)});
    t.normal_();
    EXPECT_TRUE(full_tensor(t).equal(expected));
  });
}

TEST(Draws, OfManyBadNumbersAreAnErrorOnEveryRank) {
  auto numbers = at::linspace(0, 1.1, 60 * 70).view({60, 70});
  for_each_world({2, 4}, [&](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto error = [&](const at::Tensor& t) { return error_text<c10::Error>([&] { at::bernoulli(t); }); };
    auto expected = error(numbers);
    auto before = state();
    EXPECT_EQ(error(lay_out(numbers, mesh, {Shard(0)})).rfind(expected, 0), 0);
    EXPECT_TRUE(state().equal(before));
  });
}

}  // namespace
}  // namespace intarsia::random_draws_test
