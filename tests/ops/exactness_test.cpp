// Values and gradients where LibTorch's own formulas are delicate, on every cut.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "tests/support/compare.h"
#include "tests/support/error_text.h"
#include "tests/support/world.h"

namespace intarsia::ops_exactness_test {
namespace {

at::Tensor longs(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }
DeviceMesh line(int64_t n) { return init_device_mesh(at::kCPU, {n}, {"tp"}); }

// The function on inputs that are cut in every way along the dims of the first.
void expect_exact(const std::string& name, const Function& function, const std::vector<at::Tensor>& inputs,
                  std::initializer_list<const char*> cuts = {"[R]", "[S(0)]", "[S(1)]"}) {
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto cut : cuts) {
      std::vector<std::string> placements(inputs.size(), "[R]");
      placements[0] = cut;
      try {
        EXPECT_EQ(compare(function, inputs, line(n), placements, 1e-9), "") << name << " " << cut << " on " << n;
      } catch (const c10::Error& error) {
        ADD_FAILURE() << name << " " << cut << " on " << n << ": " << error.what_without_backtrace();
      }
    }
  });
}

TEST(Exactness, ExtremesWhereSomeRanksHoldNothing) {
  for (auto cut : {"[S(0)]", "[S(1)]"}) {
    expect_exact("max", [](auto& t) { return t[0].max(); }, {waves({1, 2})}, {cut});
    expect_exact("min", [](auto& t) { return t[0].min(); }, {waves({1, 2})}, {cut});
    expect_exact("amax", [](auto& t) { return t[0].amax({0}); }, {waves({1, 2})}, {cut});
    expect_exact("max along", [](auto& t) { return std::get<0>(t[0].max(0)); }, {waves({1, 2})}, {cut});
    expect_exact("aminmax", [](auto& t) { return std::get<0>(at::aminmax(t[0])); }, {waves({1, 2})}, {cut});
    expect_exact("median", [](auto& t) { return t[0].median(); }, {waves({1, 2})}, {cut});
    expect_exact("mode", [](auto& t) { return std::get<0>(t[0].mode(0)); }, {waves({1, 2})}, {cut});
  }
}

TEST(Exactness, OfNothingExtremesAreThePlainError) {
  using Call = at::Tensor (*)(const at::Tensor&);
  for (Call call :
       {Call([](const at::Tensor& t) { return t.max(); }), Call([](const at::Tensor& t) { return t.min(); }),
        Call([](const at::Tensor& t) { return t.argmax(); }), Call([](const at::Tensor& t) { return t.amax({0}); }),
        Call([](const at::Tensor& t) { return t.amin({}); }), Call([](const at::Tensor& t) { return t.median(); }),
        Call([](const at::Tensor& t) { return std::get<0>(t.max(0)); }),
        Call([](const at::Tensor& t) { return std::get<0>(at::aminmax(t)); }),
        Call([](const at::Tensor& t) { return std::get<0>(t.mode(0)); }),
        Call([](const at::Tensor& t) { return std::get<0>(t.median(0)); })}) {
    auto error = [&](const at::Tensor& t) { return error_text<c10::Error>([&] { call(t); }); };
    for_each_world({2, 3, 4}, [&](int64_t n) {
      for (auto cut : {"[R]", "[S(0)]", "[S(1)]"}) {
        EXPECT_EQ(error(lay_out(at::ones({0, 3}), line(n), parse_placements(cut))), error(at::ones({0, 3})))
            << cut << " on " << n;
      }
    });
  }
}

TEST(Exactness, TheSmallerOperandOfRsubDoesNotDecideTheOrderInMemory) {
  auto column = waves({4, 1}), turned = waves({5, 4}).t();
  for_each_world({2, 4}, [&](int64_t n) {
    for (auto cut : {"[R]", "[S(0)]"}) {
      auto a = lay_out(column, line(n), parse_placements(cut)), b = lay_out(turned, line(n), parse_placements(cut));
      EXPECT_EQ(at::rsub(a, b).strides(), at::rsub(column, turned).strides()) << cut;
      EXPECT_EQ(at::rsub(b, a).strides(), at::rsub(turned, column).strides()) << cut;
      EXPECT_EQ(difference(full_tensor(at::rsub(b, a)), at::rsub(turned, column)), "") << cut;
    }
  });
}

TEST(Exactness, CumprodWithZeros) {
  auto x = waves({5, 6});
  x[0][2] = 0, x[1][0] = 0, x[1][5] = 0, x[2][3] = 0, x[2][4] = 0, x[4][5] = 0;
  for (int64_t dim : {0, 1}) {
    expect_exact("cumprod", [dim](auto& t) { return at::cumprod(t[0], dim); }, {x},
                 {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"});
    expect_exact("prod", [dim](auto& t) { return at::prod(t[0], dim); }, {x});
  }
  expect_exact("prod of all", [](auto& t) { return at::prod(t[0]); }, {waves({5, 2})});
}

TEST(Exactness, OrderAlongTheCut) {
  for (int64_t dim : {0, 1}) {
    for (bool descending : {false, true}) {
      auto sort = [=](auto& t) { return std::get<0>(at::sort(t[0], dim, descending)); };
      expect_exact("sort", sort, {waves({5, 6})});
      expect_exact("places of sort", [=](auto& t) { return std::get<1>(at::sort(t[0], dim, descending)) + t[0]; },
                   {waves({5, 6})});
      expect_exact("topk", [=](auto& t) { return std::get<0>(at::topk(t[0], 2, dim, descending)); }, {waves({5, 6})});
    }
    expect_exact("max", [=](auto& t) { return std::get<0>(at::max(t[0], dim)); }, {waves({5, 6})});
    expect_exact("kthvalue", [=](auto& t) { return std::get<0>(at::kthvalue(t[0], 2, dim)); }, {waves({5, 6})});
    expect_exact("median", [=](auto& t) { return std::get<0>(at::median(t[0], dim)); }, {waves({5, 6})});
    expect_exact("cummax", [=](auto& t) { return std::get<0>(at::cummax(t[0], dim)); }, {waves({5, 6})});
    expect_exact("logcumsumexp", [=](auto& t) { return at::logcumsumexp(t[0], dim); }, {waves({5, 6})});
  }
}

TEST(Exactness, PlacesInTheWhole) {
  auto ties = at::tensor({3, 1, 2, 1, 3, 3, 0, 2, 0, 1, 3, 0}, at::kDouble).reshape({4, 3});
  auto nan = ties.clone();
  nan[2][1] = NAN, nan[3][0] = NAN;
  for_each_world({2, 3, 4}, [&](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      auto mesh = init_device_mesh(at::kCPU, shape);
      for (auto& x : {ties, nan, at::flip(ties, {0, 1}), waves({2, 3, 5})}) {
        for (auto& last :
             {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate()), Placement(StridedShard(0, 2))}) {
          Placements placements(shape.size(), Shard(0));
          placements.back() = last;
          auto cut = lay_out(x, mesh, placements);
          EXPECT_EQ(full_tensor(at::argmax(cut)).item<int64_t>(), at::argmax(x).item<int64_t>()) << str(placements);
          EXPECT_EQ(full_tensor(at::argmin(cut)).item<int64_t>(), at::argmin(x).item<int64_t>()) << str(placements);
          EXPECT_EQ(at::argmax(cut, std::nullopt, true).sizes(), at::argmax(x, std::nullopt, true).sizes());
        }
      }
    }
  });
}

TEST(Exactness, ReadingAtPlaces) {
  auto rows = longs({4, 0, 0, 2, 3, 4}), columns = longs({1, 5, 5, 0});
  expect_exact("index_select 0", [](auto& t) { return at::index_select(t[0], 0, t[1]); }, {waves({5, 6}), rows});
  expect_exact("index_select 1", [](auto& t) { return at::index_select(t[0], 1, t[1]); }, {waves({5, 6}), columns});
  expect_exact("index", [](auto& t) { return at::index(t[0], {t[1]}); }, {waves({5, 6}), rows});
  expect_exact("take", [](auto& t) { return at::take(t[0], t[1]); }, {waves({5, 6}), longs({29, 3, 3, 11})});
  expect_exact("gather", [](auto& t) { return at::gather(t[0], 1, t[1]); },
               {waves({5, 6}), columns.expand({5, 4}).contiguous()});
  expect_exact("trace", [](auto& t) { return at::trace(t[0]); }, {waves({5, 6})});
  expect_exact("dist", [](auto& t) { return at::dist(t[0], t[1], 2); }, {waves({5, 6}), waves({5, 6}, 1.1)});
  expect_exact("renorm", [](auto& t) { return at::renorm(t[0], 2, 0, 1.5); }, {waves({5, 6})});
  expect_exact("repeat_interleave", [](auto& t) { return at::repeat_interleave(t[0], t[1], 0); },
               {waves({5, 6}), longs({1, 0, 2, 3, 1})});
  expect_exact("masked_scatter", [](auto& t) { return at::masked_scatter(t[0], t[0] > 0, t[1]); },
               {waves({5, 6}), waves({5, 6}, 1.1)});
  expect_exact("put", [](auto& t) { return at::put(t[0], t[1], t[2], true); },
               {waves({5, 6}), longs({29, 3, 3}), waves({3})});
}

TEST(Exactness, CausalAttentionInProducts) {
  auto causal = [](auto& t) {
    return std::get<0>(at::_scaled_dot_product_attention_math(t[0], t[1], t[2], {}, 0., true));
  };
  for (auto cut : {"[R]", "[S(0)]", "[S(1)]", "[S(2)]"}) {
    for_each_world({2, 3}, [&](int64_t n) {
      EXPECT_EQ(compare(causal, {waves({3, 2, 5, 4}), waves({3, 2, 5, 4}, 1.1), waves({3, 2, 5, 4}, 1.7)}, line(n),
                        {cut, cut, cut}, 1e-9),
                "");
    });
  }
}

TEST(Exactness, LabelSmoothingWithWeights) {
  auto target = longs({1, 0, 2, 3, 1}), weight = at::tensor({0.3, 1.0, 0.6, 2.0}, at::kDouble);
  for (int64_t reduction : {0, 1, 2}) {
    auto loss = [=](auto& t) { return at::cross_entropy_loss(t[0], t[1], t[2].detach(), reduction, 2, 0.3); };
    expect_exact("cross_entropy", loss, {waves({5, 4}), target, weight}, {"[R]", "[S(0)]", "[S(1)]", "[P(sum)]"});
  }
}

TEST(Exactness, Transforms) {
  auto power = [](const at::Tensor& z) { return at::real(z) + 2 * at::imag(z); };
  expect_exact("rfft", [=](auto& t) { return power(at::fft_rfft(t[0], std::nullopt, 1)); }, {waves({5, 6})});
  expect_exact("fft2", [=](auto& t) { return power(at::fft_fft2(t[0])); }, {waves({5, 6})});
  expect_exact("fft of three", [=](auto& t) { return power(at::fft_fft(t[0], std::nullopt, -1)); }, {waves({5, 2, 6})},
               {"[S(0)]", "[S(1)]", "[S(2)]"});
  expect_exact("irfft", [](auto& t) { return at::fft_irfft(at::complex(t[0], t[0] * 2), std::nullopt, 1); },
               {waves({5, 6})});
}

}  // namespace
}  // namespace intarsia::ops_exactness_test
