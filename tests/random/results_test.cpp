// Random ops that return new tensors, or write into `out`: the numbers of the plain op, whatever the cut, and its
// generator afterwards.

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/tensor/dtensor.h"
#include "tests/support/error_text.h"
#include "tests/support/lay_out.h"
#include "tests/support/world.h"

namespace intarsia::random_results_test {
namespace {

using MaybeGenerator = std::optional<at::Generator>;

struct Result {
  const char* name;
  at::Tensor (*draw)(const at::Tensor&, const MaybeGenerator&);
};

// Of numbers from 0.1 to 0.9, in two dims. Those that take no generator draw from the default one.
const std::vector<Result> kResults = {
    {"bernoulli", [](auto& t, auto& g) { return at::bernoulli(t, g); }},
    {"bernoulli with a number", [](auto& t, auto& g) { return at::bernoulli(t, 0.3, g); }},
    {"bernoulli_ with a tensor", [](auto& t, auto& g) { return at::empty_like(t).bernoulli_(t, g); }},
    {"bernoulli_ with a tensor of doubles",
     [](auto& t, auto& g) { return at::empty_like(t, at::kInt).bernoulli_(t.to(at::kDouble), g); }},
    {"bernoulli_ with a row", [](auto& t, auto& g) { return at::empty_like(t).bernoulli_(t.select(0, 1), g); }},
    {"bernoulli_ with another cut",
     [](auto& t, auto& g) { return at::empty_like(t).bernoulli_(t.t().contiguous().t(), g); }},
    {"normal of means", [](auto& t, auto& g) { return at::normal(t, 2.0, g); }},
    {"normal of deviations", [](auto& t, auto& g) { return at::normal(0.1, t, g); }},
    {"normal of both", [](auto& t, auto& g) { return at::normal(t, t, g); }},
    {"multinomial", [](auto& t, auto& g) { return at::multinomial(t, 1, false, g); }},
    {"multinomial of several", [](auto& t, auto& g) { return at::multinomial(t, 3, false, g); }},
    {"multinomial with replacement", [](auto& t, auto& g) { return at::multinomial(t, 3, true, g); }},
    {"poisson", [](auto& t, auto& g) { return at::poisson(t * 9, g); }},
    {"binomial", [](auto& t, auto& g) { return at::binomial(at::full_like(t, 17), t, g); }},
    {"rrelu", [](auto& t, auto& g) { return at::rrelu(t - 0.5, 0.1, 0.3, true, g); }},
    {"rrelu_",
     [](auto& t, auto& g) {
       auto y = t - 0.5;
       return at::rrelu_(y, 0.1, 0.3, true, g);
     }},
    {"the noise of rrelu_with_noise",
     [](auto& t, auto& g) {
       auto noise = at::zeros_like(t);
       at::rrelu_with_noise(t - 0.5, noise, 0.1, 0.3, true, g);
       return noise;
     }},
    {"rand_like", [](auto& t, auto&) { return at::rand_like(t); }},
    {"randn_like", [](auto& t, auto&) { return at::randn_like(t); }},
    {"randint_like", [](auto& t, auto&) { return at::randint_like(t, 100); }},
    {"randint_like between", [](auto& t, auto&) { return at::randint_like(t, -3, 100, at::kInt); }},
    {"dropout", [](auto& t, auto&) { return at::dropout(t, 0.3, true); }},
    {"dropout_",
     [](auto& t, auto&) {
       auto y = t.clone();
       return at::dropout_(y, 0.3, true);
     }},
    {"alpha_dropout", [](auto& t, auto&) { return at::alpha_dropout(t, 0.3, true); }},
    {"feature_dropout", [](auto& t, auto&) { return at::feature_dropout(t, 0.3, true); }},
    {"feature_alpha_dropout", [](auto& t, auto&) { return at::feature_alpha_dropout(t, 0.3, true); }},
    {"native_dropout", [](auto& t, auto&) { return std::get<0>(at::native_dropout(t, 0.3, true)); }},
    {"the mask of native_dropout", [](auto& t, auto&) { return std::get<1>(at::native_dropout(t, 0.3, true)); }},
};

// Into an empty one like the given numbers.
at::Tensor room(const at::Tensor& t) { return at::full_like(t, 7); }
at::Tensor row(const at::Tensor& t, at::ScalarType dtype) { return at::full_like(t.select(0, 0), 7, dtype); }
const std::vector<Result> kOuts = {
    {"rand",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::rand_out(out, t.sizes(), g);
     }},
    {"randn",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::randn_out(out, t.sizes(), g);
     }},
    {"normal of means",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::normal_out(out, t, 2., g);
     }},
    {"normal of deviations",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::normal_out(out, 2., t, g);
     }},
    {"normal of both",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::normal_out(out, t, t, g);
     }},
    {"bernoulli",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::bernoulli_out(out, t, g);
     }},
    {"poisson",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::poisson_out(out, t, g);
     }},
    {"binomial",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::binomial_out(out, t * 9, t, g);
     }},
    {"multinomial",
     [](auto& t, auto& g) {
       auto out = at::full_like(t.narrow(1, 0, 3), 7, at::kLong);
       return at::multinomial_out(out, t, 3, false, g);
     }},
    {"uniform",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::uniform_out(out, t, 0, 1, g);
     }},
};
// Ops without a form that returns its result: an error that says so, on every rank.
const std::vector<Result> kRefusedOuts = {
    {"randint",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::randint_out(out, 9, t.sizes(), g);
     }},
    {"randint between",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::randint_out(out, -3, 9, t.sizes(), g);
     }},
    {"randperm",
     [](auto& t, auto& g) {
       auto out = row(t, at::kLong);
       return at::randperm_out(out, t.size(1), g);
     }},
    {"normal",
     [](auto& t, auto& g) {
       auto out = room(t);
       return at::normal_out(out, 1., 2., t.sizes(), g);
     }},
    {"rand_like",
     [](auto& t, auto&) {
       auto out = room(t);
       return at::rand_like_out(out, t);
     }},
};

at::Tensor default_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// The generator keeps a number from one draw to the next: here it has one.
void seed_results() {
  torch::manual_seed(5);
  at::empty({3}).log_normal_();
}

struct Drawn {
  at::Tensor value, after, after_mine;
  std::string error;
  bool fails = false;
};

Drawn drawn_by(const Result& result, const at::Tensor& t, bool own_generator) {
  seed_results();
  MaybeGenerator mine;
  if (own_generator) mine = at::detail::createCPUGenerator(3);
  Drawn drawn;
  drawn.error = error_text<c10::Error>([&] { drawn.value = result.draw(t, mine); });
  drawn.fails = !drawn.value.defined();
  if (drawn.value.defined() && is_dtensor(drawn.value)) drawn.value = full_tensor(drawn.value);
  drawn.after = default_state();
  drawn.after_mine = own_generator ? mine->get_state() : drawn.after;
  return drawn;
}

void expect_same_result(const Result& result, const at::Tensor& x, const DeviceMesh& mesh, const Placements& placements,
                        bool own_generator = false) {
  auto expected = drawn_by(result, x, own_generator),
       got = drawn_by(result, lay_out(x, mesh, placements), own_generator);
  auto where =
      c10::str(result.name, " of ", x.sizes(), " ", x.scalar_type(), " as ", str(placements), " on ", mesh.text());
  ASSERT_EQ(got.fails, expected.fails) << where << ": " << expected.error << "; " << got.error;
  if (expected.fails) return;
  EXPECT_EQ(got.value.dtype(), expected.value.dtype()) << where;
  EXPECT_TRUE(got.value.equal(expected.value)) << where;
  EXPECT_TRUE(got.after.equal(expected.after) && got.after_mine.equal(expected.after_mine))
      << "the generator after " << where;
}

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::linspace(0.1, 0.9, c10::multiply_integers(shape)).view(shape).to(dtype);
}

const std::vector<Placement> kCuts = {Shard(0), Shard(1), StridedShard(1, 2), Replicate()};

TEST(RandomResults, AreThoseOfThePlainOp) {
  for_each_world({1, 2, 3, 4, 5, 6, 7, 8}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& result : kResults) {
      for (auto& cut : kCuts) {
        expect_same_result(result, numbers({7, 5}), mesh, {cut});
        expect_same_result(result, numbers({66, 71}), mesh, {cut}, n % 2);
      }
    }
  });
}

TEST(RandomResults, OfCutRowsOfProbabilitiesStayCut) {
  auto world = simulate(4);
  auto rows = lay_out(numbers({7, 5}), init_device_mesh(at::kCPU, {4}), {Shard(0)});
  for (auto count : {1, 3}) {
    for (bool replaces : {false, true}) EXPECT_EQ(str(placements_of(at::multinomial(rows, count, replaces))), "[S(0)]");
  }
}

TEST(RandomResults, OnMeshesOfSeveralAxesAreThoseOfThePlainOp) {
  for_each_world({4, 6, 8}, [](int64_t n) {
    for (auto& shape : mesh_shapes(n)) {
      if (shape.size() == 1) continue;
      auto mesh = init_device_mesh(at::kCPU, shape);
      for (auto& cut : std::vector<Placements>{
               {Shard(0), Shard(1)}, {Shard(1), Shard(1)}, {Replicate(), Shard(0)}, {StridedShard(0, 3), Shard(0)}}) {
        if (mesh.ndim() == 3) cut.insert(cut.begin(), Shard(1));
        for (auto& result : kResults) expect_same_result(result, numbers({66, 37}), mesh, cut, n == 4);
      }
    }
  });
}

TEST(RandomResults, OfOtherTypesAreThoseOfThePlainOp) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
      for (auto& result : kResults) {
        expect_same_result(result, numbers({66, 37}, dtype), mesh, {Shard(0)});
        expect_same_result(result, numbers({7, 5}, dtype), mesh, {Shard(1)}, true);
      }
    }
  });
}

TEST(RandomResults, WrittenIntoATensorAreThoseOfThePlainOp) {
  for_each_world({1, 2, 3, 4, 8}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& result : kOuts) {
      for (auto& cut : kCuts) {
        expect_same_result(result, numbers({7, 5}), mesh, {cut});
        expect_same_result(result, numbers({66, 71}), mesh, {cut}, true);
      }
    }
  });
}

TEST(RandomResults, ThatCannotBeWrittenIntoATensorAreAnError) {
  for_each_world({1, 2, 4}, [](int64_t n) {
    auto t = lay_out(numbers({7, 5}), init_device_mesh(at::kCPU, {n}), {Shard(0)});
    for (auto& result : kRefusedOuts) {
      auto error = drawn_by(result, t, false).error;
      EXPECT_NE(error.find("writes into out tensors and has no functional form"), error.npos)
          << result.name << ": " << error;
    }
  });
}

TEST(RandomResults, OfNoElementsDrawNothing) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& result : kResults) {
      for (auto& cut : kCuts) expect_same_result(result, numbers({0, 5}), mesh, {cut});
    }
  });
}

TEST(RandomResults, WithoutGradientsAndInInferenceModeAreThoseOfThePlainOp) {
  for_each_world({2, 4}, [](int64_t n) {
    auto mesh = init_device_mesh(at::kCPU, {n});
    for (auto& result : kResults) {
      at::NoGradGuard no_grad;
      expect_same_result(result, numbers({66, 37}), mesh, {Shard(0)});
      c10::InferenceMode inference;
      expect_same_result(result, numbers({66, 37}), mesh, {Shard(0)});
    }
  });
}

}  // namespace
}  // namespace intarsia::random_results_test
