// Twenty steps in every way of data parallelism: losses and every parameter are those of one process.

#include "tests/data_parallel/trainees.h"

namespace intarsia::data_parallel_twenty_steps_test {
namespace {

// The gradients of one process that works through the parts of a batch one after the other, as each rank does with its
// own: for modules whose results depend on who is in a part. Statistics are kept of the first part.
double pass_by_parts(Trainee& plain, const at::Tensor& batch, int64_t parts) {
  std::vector<at::Tensor> before, after;
  for (auto& buffer : plain.module->buffers()) before.push_back(buffer.clone());
  double mean = 0;
  for (int64_t part = 0; part < parts; ++part) {
    auto loss = plain.loss(batch.chunk(parts)[part]);
    (loss / static_cast<double>(parts)).backward();
    mean += loss.item<double>() / static_cast<double>(parts);
    for (size_t b = 0; b < before.size(); ++b) {
      auto buffer = plain.module->buffers()[b];
      if (part == 0) after.push_back(buffer.clone());
      buffer.copy_(part + 1 < parts ? before[b] : after[b]);
    }
  }
  return mean;
}

double pass_at_once(Trainee& plain, const at::Tensor& batch) {
  auto loss = plain.loss(batch);
  loss.backward();
  return loss.item<double>();
}

void compare(const MakeTrainee& make, const ParallelWay& way, at::ScalarType dtype) {
  SCOPED_TRACE(way.name);
  auto n = current_world().size();
  auto own = make(dtype), plain = make(dtype);
  auto optimizer = optimizer_for(own), goal = optimizer_for(plain);  // made before: leaves stay the same
  way.wrap(own);
  auto mesh = all_ranks();
  auto tolerance = dtype == at::kDouble ? 1e-12 : 1e-6;
  for (int64_t step = 0; step < 20; ++step) {
    auto batch = [&](int64_t pass) { return plain.batch(step * way.passes + pass, 3 * n); };
    auto loss =
        mean_of_ranks(parallel_step(own, optimizer, way.passes, [&](int64_t pass) { return mine(batch(pass), mesh); }));
    goal.zero_grad();
    double expected = 0;
    for (int64_t pass = 0; pass < way.passes; ++pass) {
      expected += plain.has_statistics ? pass_by_parts(plain, batch(pass), n) : pass_at_once(plain, batch(pass));
    }
    goal.step();
    ASSERT_NEAR(loss, expected, tolerance * std::max(1.0, std::abs(expected))) << "in step " << step;
  }
  expect_same_tensors(*own.module, *plain.module, tolerance);
}

// Worlds of one to eight ranks; the real one in processes.
template <class Body>
void in_worlds(std::initializer_list<int64_t> sizes, Body body) {
  if (process_world()) return body();
  for (auto n : sizes) {
    SCOPED_TRACE("in a simulation of " + std::to_string(n));
    auto world = simulate(n);
    body();
  }
}

// Every third way, others in a world of another size and for another test: together the tests try each in several
// worlds.
std::vector<ParallelWay> some_ways(int64_t turn) {
  std::vector<ParallelWay> some;
  auto all = ways();
  for (size_t i = (current_world().size() + turn) % 3; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
}

TEST(TwentySteps, OfAnMlp) {
  in_worlds({1, 2, 3, 4, 5, 6, 7, 8}, [] {
    for (auto& way : some_ways(0)) compare(mlp_trainee, way, at::kDouble);
  });
}

TEST(TwentySteps, OfABatchNormCnn) {
  in_worlds({1, 2, 3, 5}, [] {
    for (auto& way : some_ways(1)) compare(cnn_trainee, way, at::kDouble);
  });
}

TEST(TwentySteps, OfALlama) {
  in_worlds({1, 3, 5}, [] {
    for (auto& way : some_ways(2)) compare(untied_llama, way, at::kDouble);
  });
}

TEST(TwentySteps, OfTiedAndFrozenWeights) {
  in_worlds({2, 3, 4}, [] {
    for (auto& way : some_ways(0)) compare(tied_llama, way, at::kDouble);
    for (auto& way : some_ways(1)) compare(partly_frozen(mlp_trainee), way, at::kDouble);
  });
}

TEST(TwentySteps, InFloat) {
  in_worlds({2, 3, 4}, [] {
    for (auto& way : some_ways(2)) {
      for (auto make : {mlp_trainee, cnn_trainee}) compare(make, way, at::kFloat);
    }
  });
}

}  // namespace
}  // namespace intarsia::data_parallel_twenty_steps_test
