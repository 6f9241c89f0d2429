// Draws into views, into tensors of any size, and after moves: the numbers of the plain op.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/nn/recompute.h"
#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::random_places_test {
namespace {

using Fill = void (*)(const at::Tensor&);
struct NamedFill {
  const char* name;
  Fill fill;
};

const std::vector<NamedFill> kFills = {
    {"uniform_", [](const at::Tensor& t) { t.uniform_(); }},
    {"normal_", [](const at::Tensor& t) { t.normal_(2, 3); }},
    {"log_normal_", [](const at::Tensor& t) { t.log_normal_(); }},
    {"exponential_", [](const at::Tensor& t) { t.exponential_(); }},
    {"bernoulli_", [](const at::Tensor& t) { t.bernoulli_(0.4); }},
    {"random_", [](const at::Tensor& t) { t.random_(0, 100); }},
};

using View = at::Tensor (*)(const at::Tensor&);
struct NamedView {
  const char* name;
  View view;
};

const std::vector<NamedView> kViews = {
    {"select of a row", [](const at::Tensor& t) { return t.select(0, 3); }},
    {"select of a column", [](const at::Tensor& t) { return t.select(1, 3); }},
    {"narrow", [](const at::Tensor& t) { return t.narrow(0, 3, 50); }},
    {"narrow of columns", [](const at::Tensor& t) { return t.narrow(1, 5, 50); }},
    {"slice with a step", [](const at::Tensor& t) { return t.slice(0, 1, 63, 2); }},
    {"slice of columns with a step", [](const at::Tensor& t) { return t.slice(1, 1, 63, 3); }},
    {"transpose", [](const at::Tensor& t) { return t.t(); }},
    {"flat", [](const at::Tensor& t) { return t.view(-1); }},
    {"split dim", [](const at::Tensor& t) { return t.view({6, 11, 71}); }},
    {"unsqueeze", [](const at::Tensor& t) { return t.unsqueeze(1); }},
    {"diagonal", [](const at::Tensor& t) { return t.diagonal(); }},
    {"view of a view", [](const at::Tensor& t) { return t.narrow(0, 3, 50).t().narrow(0, 7, 60); }},
    {"expanded", [](const at::Tensor& t) { return t.select(0, 1).unsqueeze(0).expand({4, 71}); }},
    {"nothing", [](const at::Tensor& t) { return t.narrow(0, 3, 0); }},
    {"one element", [](const at::Tensor& t) { return t.select(0, 3).select(0, 5); }},
};

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

void seed_keeping_one() {
  torch::manual_seed(5);
  at::empty({3}).log_normal_();
}

TEST(DrawsInPlace, IntoViewsReachTheBase) {
  for_each_world({1, 2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& fill : kFills) {
      for (auto& view : kViews) {
        for (auto& cut :
             {Placement(Shard(0)), Placement(Shard(1)), Placement(StridedShard(0, 2)), Placement(Replicate())}) {
          auto expected = at::arange(66. * 71).view({66, 71}).to(at::kFloat);
          auto t = lay_out(expected, mesh, {cut});
          seed_keeping_one();
          auto error = error_text<c10::Error>([&] { fill.fill(view.view(expected)); });
          auto after = generator_state();
          seed_keeping_one();
          auto ours = error_text<c10::Error>([&] { fill.fill(view.view(t)); });
          auto where = c10::str(fill.name, " of ", view.name, " of ", str(cut), " on ", n);
          EXPECT_EQ(ours == "no error", error == "no error") << where << ": " << ours << "; " << error;
          EXPECT_TRUE(error != "no error" || generator_state().equal(after)) << "the generator after " << where;
          EXPECT_TRUE(full_tensor(t).equal(expected)) << where;
        }
      }
    }
  });
}

void expect_same_fill(const NamedFill& fill, int64_t size, at::ScalarType dtype, const DeviceMesh& mesh,
                      bool contiguous) {
  auto make = [&](const at::Tensor& t) { return contiguous ? t : t.view({size, 2}).select(1, 0); };
  auto whole = at::zeros({contiguous ? size : 2 * size}, dtype);
  auto t = make(lay_out(whole, mesh, {Shard(0)}));
  auto expected = make(whole);
  for (auto& each : {expected, t}) {
    seed_keeping_one();
    fill.fill(each);
    fill.fill(each);  // from where the first one has left the generator
  }
  EXPECT_TRUE(full_tensor(t).equal(expected))
      << fill.name << " of " << size << " " << dtype << " on " << mesh.text() << contiguous;
}

TEST(DrawsInPlace, OfEverySizeAroundTheBlocksOfTheNormalDistribution) {
  for_each_world({2, 3, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& fill : kFills) {
      for (auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        for (int64_t size = 1; size <= 40; ++size) {
          expect_same_fill(fill, size, dtype, mesh, true);
          expect_same_fill(fill, 2040 + size, dtype, mesh, size % 2);
        }
      }
    }
  });
}

TEST(DrawsInPlace, OfEveryTypeAreThoseOfThePlainOpOrItsError) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& fill : kFills) {
      for (auto dtype :
           {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
        auto expected = at::zeros({40, 71}, dtype);
        auto t = lay_out(expected, mesh, {Shard(0)});
        torch::manual_seed(5);
        auto error = error_text<c10::Error>([&] { fill.fill(expected); });
        auto after = generator_state();
        torch::manual_seed(5);
        EXPECT_EQ(error_text<c10::Error>([&] { fill.fill(t); }), error) << fill.name << " " << dtype;
        EXPECT_TRUE(generator_state().equal(after)) << "the generator after " << fill.name << " " << dtype;
        EXPECT_TRUE(full_tensor(t).equal(expected)) << fill.name << " " << dtype;
      }
    }
  });
}

TEST(DrawsInPlace, OfPendingSumsReplaceTheSum) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& fill : kFills) {
      auto expected = at::ones({60, 71});
      auto t = lay_out(expected, mesh, {Partial()});
      for (auto& each : {expected, t}) {
        seed_keeping_one();
        fill.fill(each);
      }
      EXPECT_TRUE(full_tensor(t).equal(expected)) << fill.name;
    }
  });
}

TEST(DrawsInPlace, AfterAMoveAreThoseOfThePlainOp) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& fill : kFills) {
      auto expected = at::ones({60, 71});
      auto t = redistribute(redistribute(lay_out(expected, mesh, {Shard(0)}), {Shard(1)}), {StridedShard(0, 3)});
      for (auto& each : {expected, t}) {
        seed_keeping_one();
        fill.fill(each);
      }
      EXPECT_TRUE(full_tensor(redistribute(t, {Shard(1)})).equal(expected)) << fill.name;
    }
  });
}

// Dropouts in segments that are computed again inside of one that is.
std::vector<at::Tensor> drop(const std::vector<at::Tensor>& in) { return {at::dropout(in[0] * in[0], 0.3, true)}; }

at::Tensor call_segment(bool again, const RecomputedSegment& segment, const at::Tensor& t) {
  return again ? recompute_segment(segment, {t})[0] : segment({t})[0];
}

at::Tensor nested(const at::Tensor& x, bool again) {
  auto outer = [again](const std::vector<at::Tensor>& in) {
    auto y = call_segment(again, drop, at::dropout(in[0], 0.2, true));
    return std::vector{at::dropout(call_segment(again, drop, y) + at::rand_like(y), 0.1, true)};
  };
  return call_segment(again, outer, call_segment(again, drop, x));
}

TEST(DrawsInPlace, OfNestedSegmentsThatAreComputedAgainAreTheSame) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    auto whole = at::linspace(-1, 1, 60 * 71).view({60, 71});
    std::vector<at::Tensor> gradients, values;
    for (bool again : {false, true}) {
      for (auto x : {whole.clone(), lay_out(whole, mesh, {Shard(1)})}) {
        torch::manual_seed(4);
        x.requires_grad_();
        auto y = nested(x, again);
        y.pow(2).sum().backward();
        values.push_back(is_dtensor(y) ? full_tensor(y.detach()) : y.detach());
        gradients.push_back(is_dtensor(x) ? full_tensor(x.grad()) : x.grad());
      }
    }
    for (size_t i = 1; i < values.size(); ++i) {
      EXPECT_TRUE(values[i].equal(values[0])) << i;
      EXPECT_TRUE(gradients[i].equal(gradients[0])) << i;
    }
  });
}

}  // namespace
}  // namespace intarsia::random_places_test
