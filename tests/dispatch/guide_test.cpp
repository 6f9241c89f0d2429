#include "intarsia/propagate/guide.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::dispatch_guide_test {
namespace {

using Advise = std::function<std::optional<Advice>(const Question&)>;

struct Guided {
  explicit Guided(Advise advise) { set_guide({std::move(advise), {}, {}}); }
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

// Calls an op three times. How often the guide is asked, and about which ops.
std::vector<std::string> asked_about(const std::function<void()>& call, const Advice* advice = nullptr) {
  std::vector<std::string> asked;
  Guided guided([&](const Question& q) {
    asked.push_back(q.call.schema.name());
    return advice ? std::optional(*advice) : std::nullopt;
  });
  for (int i = 0; i < 3; ++i) call();
  return asked;
}

TEST(Guide, IsAskedOnceAboutAnOpThatHasARuleAndAPlanner) {
  for_each_world({2, 4}, [](int64_t n) {
    auto cut = cut_rows(torch::arange(1., 33.).view({8, 4}) / 32, n);
    using Ops = std::vector<std::string>;
    EXPECT_EQ(asked_about([&] { cut.cumsum(1); }), Ops{"aten::cumsum"}) << "the rows serve";
    EXPECT_EQ(asked_about([&] { cut.cumsum(0); }), Ops{"aten::cumsum"}) << "the planner has a lowering";
    auto wrong = one_to_one(Shard(0), Shard(0));
    EXPECT_EQ(asked_about([&] { cut.cumsum(0); }, &wrong), Ops{"aten::cumsum"}) << "no rows allow what is advised";
    auto whole = one_to_one(Replicate(), Replicate());
    EXPECT_EQ(asked_about([&] { cut.cumsum(0); }, &whole), Ops{"aten::cumsum"}) << "the advice is followed";
  });
}

TEST(Guide, IsAskedOnceAboutAnInPlaceOpThatCannotKeepItsLayout) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::arange(1., 33.).view({8, 4}) / 32;
    auto cut = cut_rows(x, n);
    EXPECT_EQ(asked_about([&] { cut.cumsum_(0); }), std::vector<std::string>{"aten::cumsum"});
    EXPECT_TRUE(at::allclose(full_tensor(cut), x.cumsum(0).cumsum(0).cumsum(0)));
  });
}

TEST(Guide, IsAskedOnceAboutAnOpWithoutARule) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::arange(1., 33.).view({8, 4}) / 32;
    auto cut = cut_rows(x, n);
    CommDebugMode comms;
    EXPECT_EQ(asked_about([&] { EXPECT_TRUE(at::equal(full_tensor(at::hash_tensor(cut)), at::hash_tensor(x))); }),
              std::vector<std::string>{"aten::hash_tensor"});
    EXPECT_EQ(comms.fallbacks().size(), 3u) << "every call is in the trace";
  });
}

TEST(Guide, WordsErrorsAboutFormsAndMeshes) {
  for_each_world({2, 4}, [](int64_t n) {
    auto cut = cut_rows(torch::ones({6, 4}), n);
    auto plain = error_text<c10::Error>([&] { at::mm(cut, cut); });
    set_guide(
        {[](const Question&) { return std::nullopt; }, [](auto& op, auto& error) { return op + ": " + error; }, {}});
    auto worded = error_text<c10::Error>([&] { at::mm(cut, cut); });
    set_guide({});
    EXPECT_EQ(worded, "aten::mm: " + plain);
  });
}

TEST(Guide, AloneTakesRowsThatAreForIt) {
  for_each_world({2, 4}, [](int64_t n) {
    auto x = torch::arange(1., 33.).view({8, 4}) / 32;
    auto cut = cut_rows(x, n);
    auto norm = [&] { return at::linalg_vector_norm(cut, 2, at::IntArrayRef{0}); };
    EXPECT_FALSE(layout_of(norm()).has_partial());
    Guided guided([](const Question&) { return one_to_one(Shard(0), NormPartial(2)); });
    auto pending = norm();
    EXPECT_EQ(str(placements_of(pending)), "[P(norm 2)]");
    EXPECT_TRUE(at::allclose(full_tensor(pending), at::linalg_vector_norm(x, 2, at::IntArrayRef{0})));
  });
}

TEST(Guide, IsLeftOutInItsScopeAndInsideOfLowerings) {
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
