#include "intarsia/propagate/guide.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_guide_test {
namespace {

struct Guided {
  explicit Guided(Guide guide) { set_guide(std::move(guide)); }
  ~Guided() { set_guide({}); }
};

// One input and one result.
Advice one_to_one(Placement in, Placement out) { return {{Placements{in}}, {Placements{out}}}; }

at::Tensor cut_rows(const at::Tensor& x, int64_t n) {
  return distribute_tensor(x, init_device_mesh(at::kCPU, {n}), {Shard(0)});
}

TEST(Guide, IsFollowedWhereTheRowsAllowIt) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::arange(24.).view({6, 4});
    auto cut = cut_rows(x, n);
    EXPECT_EQ(str(placements_of(cut.softmax(0))), "[S(0)]");
    Guided guided([](const Question&) { return one_to_one(Replicate(), Replicate()); });
    for (int i = 0; i < 2; ++i) {  // the second call is known
      EXPECT_EQ(str(placements_of(cut.softmax(0))), "[R]");
      EXPECT_EQ(str(placements_of(cut.relu())), "[R]");
    }
    EXPECT_TRUE(at::allclose(full_tensor(cut.softmax(0)), x.softmax(0)));
  });
}

TEST(Guide, IsNotFollowedWhereTheResultWouldBeWrong) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::arange(24.).view({6, 4});
    auto cut = cut_rows(x, n);
    Guided guided([](const Question&) { return one_to_one(Shard(0), Shard(0)); });
    EXPECT_TRUE(at::allclose(full_tensor(cut.softmax(0)), x.softmax(0)));
    EXPECT_TRUE(at::allclose(full_tensor(cut.sum(0)), x.sum(0)));
  });
}

TEST(Guide, IsAskedOncePerKindOfCall) {
  for_each_world({2, 4}, [](int64_t n) {
    auto cut = cut_rows(torch::ones({6, 4}), n);
    int asked = 0;
    Guided guided([&](const Question&) { return ++asked, std::nullopt; });
    for (int i = 0; i < 3; ++i) cut.exp();
    EXPECT_EQ(asked, 1);
  });
}

TEST(Guide, IsLeftOutInItsScopeAndInsideOfWays) {
  for_each_world({2, 4}, [](int64_t n) {
    auto cut = cut_rows(torch::ones({6, 4}), n);
    std::vector<std::string> asked;
    Guided guided([&](const Question& q) { return asked.push_back(q.call.schema.name()), std::nullopt; });
    {
      UnguidedScope own;
      cut.sigmoid();
    }
    cut.log_softmax(0);
    EXPECT_EQ(asked, std::vector<std::string>{"aten::_log_softmax"});
  });
}

TEST(Guide, IsAskedAboutTheOpsThatTakeThePlaceOfAnother) {
  for_each_world({2, 4}, [](int64_t n) {
    auto cut = cut_rows(torch::ones({6, 4}), n);
    std::vector<std::string> asked;
    Guided guided([&](const Question& q) { return asked.push_back(q.call.schema.name()), std::nullopt; });
    at::dist(cut, cut);
    EXPECT_EQ(asked, (std::vector<std::string>{"aten::sub", "aten::linalg_vector_norm"}));
  });
}

TEST(Means, OfEqualShardsMayStayPendingAverages) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::randn({2 * n, 3}), odd = torch::randn({2 * n + 1, 3});
    Guided guided([](const Question&) { return one_to_one(Shard(0), Partial(ReduceOp::avg)); });
    auto even_mean = cut_rows(x, n).mean(0), odd_mean = cut_rows(odd, n).mean(0);
    EXPECT_EQ(str(placements_of(even_mean)), "[P(avg)]");
    EXPECT_TRUE(at::allclose(full_tensor(even_mean), x.mean(0)));
    EXPECT_NE(str(placements_of(odd_mean)), "[P(avg)]");
    EXPECT_TRUE(at::allclose(full_tensor(odd_mean), odd.mean(0)));
  });
}

}  // namespace
}  // namespace intarsia::dispatch_guide_test
