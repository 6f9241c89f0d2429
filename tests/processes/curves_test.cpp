// Loss curves of processes and of simulations, number by number.

#include "tests/data_parallel/trainees.h"

namespace intarsia::processes_curves_test {
namespace {

// By step, of each hosted rank.
std::vector<std::vector<double>> curve_of(const MakeTrainee& make, const ParallelWay& way) {
  auto trainee = make(at::kFloat);
  auto optimizer = optimizer_for(trainee);
  way.wrap(trainee);
  auto mesh = all_ranks();
  std::vector<std::vector<double>> curve;
  for (int64_t step = 0; step < 20; ++step) {
    curve.push_back(parallel_step(trainee, optimizer, way.passes, [&](int64_t pass) {
      return mine(trainee.batch(step * way.passes + pass, 3 * mesh.size()), mesh);
    }));
  }
  return curve;
}

TEST(CurvesProcesses, AreExactlyThoseOfASimulation) {
  auto n = current_world().size(), rank = current_world().hosted()[0];
  for (auto& way : ways()) {
    for (auto& make : {MakeTrainee(mlp_trainee), MakeTrainee(cnn_trainee), MakeTrainee(tied_llama)}) {
      auto real = curve_of(make, way);
      auto world = simulate(n);
      auto simulated = curve_of(make, way);
      for (int64_t step = 0; step < 20; ++step)
        ASSERT_EQ(real[step][0], simulated[step][rank]) << way.name << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace intarsia::processes_curves_test
