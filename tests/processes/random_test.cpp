#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/debug/comm_debug_mode.h"
#include "intarsia/intarsia.h"
#include "tests/support/error_text.h"

namespace intarsia::processes_random_test {
namespace {

const char* const kNamed = "the generators of the ranks [1] are in another state than that of rank 0";

DeviceMesh line() { return init_device_mesh(at::kCPU, {world_size()}); }

// On every rank; the rank that differs is named.
template <class Draw>
void expect_named(const std::string& op, Draw draw) {
  auto before = at::detail::getDefaultCPUGenerator().get_state();
  auto error = error_text<c10::ValueError>(draw);
  EXPECT_NE(error.find("[" + op + "] " + kNamed), error.npos) << error;
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(before)) << op;
}

TEST(Generators, ThatDifferAreAnErrorOfTheDrawOnEveryRank) {
  auto t = ones({70, 60}, line(), {Shard(0)}), small = ones({5, 3}, line(), {Replicate()});
  torch::manual_seed(rank() == 1 ? 4 : 3);
  expect_named("aten::uniform_", [&] { t.uniform_(); });
  expect_named("aten::normal_", [&] { small.normal_(); });
  expect_named("aten::poisson", [&] { at::poisson(t); });
  expect_named("aten::bernoulli_.float", [&] { at::dropout(t, 0.5, true); });
  expect_named("aten::uniform_", [&] { torch::nn::init::xavier_uniform_(small); });
  torch::manual_seed(3);
}

TEST(Generators, ThatAreAlikeAreComparedByOneAgreement) {
  auto t = zeros({70, 60}, line(), {Shard(0)});
  torch::manual_seed(3);
  CommDebugMode comms;
  t.uniform_();
  EXPECT_EQ(comms.text(), "");
  ASSERT_EQ(comms.agreements().size(), 1);
  EXPECT_EQ(comms.agreements()[0].op, "aten::uniform_");
  torch::manual_seed(3);
  EXPECT_TRUE(full_tensor(t).equal(at::zeros({70, 60}).uniform_()));
}

TEST(Generators, OfRanksAgreeWhenTheProgramSaysSo) {
  torch::manual_seed(rank() + 3);
  agree_on_generator(line());
  auto t = zeros({70, 60}, line(), {Shard(1)}).normal_();
  torch::manual_seed(3);
  EXPECT_TRUE(full_tensor(t).equal(at::zeros({70, 60}).normal_()));
}

TEST(Generators, OfTheProgramsOwnAreComparedToo) {
  auto t = zeros({70, 60}, line(), {Shard(0)});
  torch::manual_seed(3);
  auto mine = at::detail::createCPUGenerator(rank() == 1 ? 8 : 7);
  expect_named("aten::uniform_", [&] { t.uniform_(0, 1, mine); });
  agree_on_generator(line(), mine);
  t.uniform_(0, 1, mine);
  EXPECT_TRUE(full_tensor(t).equal(at::zeros({70, 60}).uniform_(0, 1, at::detail::createCPUGenerator(7))));
}

TEST(Generators, GivenOnOneRankOnlyAreNamed) {
  auto t = zeros({70, 60}, line(), {Shard(0)});
  torch::manual_seed(3);
  std::optional<at::Generator> mine;
  if (rank() == 1) mine = at::detail::createCPUGenerator(7);
  expect_named("aten::uniform_", [&] { t.uniform_(0, 1, mine); });
}

TEST(Generators, FollowTheFirstRankWhereTheProgramChoosesSo) {
  auto t = zeros({5, 3}, line(), {Replicate()});
  torch::manual_seed(rank());
  set_generators(Generators::follow);
  CommDebugMode comms;
  t.uniform_();
  set_generators(Generators::compare);
  EXPECT_EQ(comms.text().substr(0, 9), "broadcast");
  torch::manual_seed(0);
  EXPECT_TRUE(shards_of(t)[0].equal(at::zeros({5, 3}).uniform_()));
}

TEST(Generators, OfRanksOutsideOfTheMeshStayBehind) {
  DeviceMesh part(at::kCPU, {2}, {0, 1});
  torch::manual_seed(3);
  auto before = at::detail::getDefaultCPUGenerator().get_state();
  zeros({70, 60}, part, {Shard(0)}).uniform_();
  EXPECT_EQ(at::detail::getDefaultCPUGenerator().get_state().equal(before), rank() > 1);
  if (world_size() == 2) return;
  auto t = zeros({70, 60}, line(), {Shard(0)});
  auto error = error_text<c10::ValueError>([&] { t.uniform_(); });
  auto named = world_size() == 3 ? "[2]" : "[2, 3]";
  EXPECT_NE(error.find(c10::str("the generators of the ranks ", named, " are in another state than that of rank 0")),
            error.npos)
      << error;
  agree_on_generator(line());
  t.uniform_();
}

TEST(Generators, OfAMeshOfOneRankSendNothing) {
  torch::manual_seed(rank());
  DeviceMesh alone(at::kCPU, {1}, {rank()});
  CommDebugMode comms;
  auto t = zeros({70, 60}, alone, {Shard(0)}).uniform_();
  EXPECT_EQ(comms.text(), "");
  EXPECT_TRUE(comms.agreements().empty());
  torch::manual_seed(rank());
  EXPECT_TRUE(full_tensor(t).equal(at::zeros({70, 60}).uniform_()));
  torch::manual_seed(0);
}

TEST(RandomScope, AgreesOnceAndThenSendsNothing) {
  auto mesh = line();
  torch::manual_seed(3);
  auto expected = at::dropout(at::ones({50, 60}), 0.3, true) + at::rand({50, 60});
  torch::manual_seed(3);
  CommDebugMode comms;
  RandomScope scope(mesh);
  EXPECT_EQ(comms.agreements().size(), 1);
  CommDebugMode draws;
  auto t = at::dropout(ones({50, 60}, mesh, {Shard(0)}), 0.3, true) + zeros({50, 60}, mesh, {Shard(0)}).uniform_();
  EXPECT_EQ(draws.text(), "");
  EXPECT_TRUE(draws.agreements().empty());
  EXPECT_TRUE(full_tensor(t).equal(expected));
}

TEST(RandomScope, NamesARankWhoseGeneratorDiffers) {
  auto mesh = line();
  torch::manual_seed(rank() == 1 ? 4 : 3);
  auto error = error_text<c10::ValueError>([&] { RandomScope scope(mesh); });
  EXPECT_NE(error.find("the generators of the ranks [1] are in another state than that of rank 0"), error.npos)
      << error;
  torch::manual_seed(3);
}

TEST(RandomScope, TellsARankThatHasDrawnByItself) {
  auto mesh = line();
  torch::manual_seed(3);
  auto t = zeros({5, 3}, mesh, {Shard(0)});
  RandomScope scope(mesh);
  at::rand({1});
  auto error = error_text<c10::Error>([&] { t.uniform_(); });
  EXPECT_NE(error.find(c10::str("rank ", rank(), " has seeded or used its generator by itself")), error.npos) << error;
  scope.agree();
  t.uniform_();
}

TEST(RandomScope, KnowsDrawsOnAPartOfItsMeshForThatPartOnly) {
  torch::manual_seed(3);
  DeviceMesh part(at::kCPU, {2}, {0, 1});
  auto t = zeros({70, 60}, line(), {Shard(0)}), of_part = zeros({70, 60}, part, {Shard(0)});
  RandomScope scope(line());
  CommDebugMode draws;
  t.uniform_(), of_part.uniform_(), of_part.uniform_();
  EXPECT_EQ(draws.text(), "");
  EXPECT_TRUE(draws.agreements().empty());
  if (world_size() == 2) return t.uniform_(), void();
  if (rank() < 2) {
    auto error = error_text<c10::Error>([&] { t.uniform_(); });
    EXPECT_NE(error.find(c10::str("rank ", rank(), " has seeded or used its generator by itself, or on a part of")),
              error.npos);
  }
  error_text<c10::ValueError>([&] { scope.agree(); });
  agree_on_generator(line());
  t.uniform_();
}

TEST(RandomScope, ComparesAGeneratorOnAPartByThatPartAlone) {
  torch::manual_seed(3);
  DeviceMesh part(at::kCPU, {2}, {0, 1});
  RandomScope scope(line());
  auto mine = at::detail::createCPUGenerator(7);
  auto t = zeros({70, 60}, part, {Shard(0)}).uniform_(0, 1, mine);  // the others do not wait
  if (rank() < 2) {
    EXPECT_TRUE(full_tensor(t).equal(at::zeros({70, 60}).uniform_(0, 1, at::detail::createCPUGenerator(7))));
  }
}

TEST(RandomScope, OfAllRanksKnowsNothingOfDrawsOnSlices) {
  if (world_size() != 4) GTEST_SKIP() << "for a mesh of 2 x 2";
  torch::manual_seed(3);
  auto grid = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
  RandomScope scope(grid);
  auto t = zeros({70, 60}, grid["tp"], {Shard(0)}), whole = zeros({70, 60}, grid, {Shard(0), Shard(1)});
  for (int64_t i = 0; i <= rank() / 2; ++i) t.uniform_();  // one slice draws more often than the other
  auto error = error_text<c10::Error>([&] { whole.uniform_(); });
  EXPECT_NE(error.find("or on a part of DeviceMesh(cpu, dp=2, tp=2)"), error.npos) << error;
  error = error_text<c10::ValueError>([&] { scope.agree(); });
  EXPECT_NE(error.find("the generators of the ranks [2, 3]"), error.npos) << error;
  torch::manual_seed(0);
}

TEST(RandomScope, ComparesAGeneratorOfOnesOwnWhenItIsFirstDrawnFrom) {
  auto mesh = line();
  torch::manual_seed(3);
  RandomScope scope(mesh);
  auto t = zeros({5, 3}, mesh, {Shard(0)});
  auto error = error_text<c10::ValueError>([&] { t.uniform_(0, 1, at::detail::createCPUGenerator(rank())); });
  EXPECT_NE(error.find("are in another state"), error.npos) << error;
  auto mine = at::detail::createCPUGenerator(7);
  t.uniform_(0, 1, mine);
  CommDebugMode draws;
  t.uniform_(0, 1, mine);
  EXPECT_EQ(draws.text(), "");
  EXPECT_TRUE(draws.agreements().empty());
}

// LibTorch's dropouts return early for a tensor without elements.
TEST(LocalRandomScope, ARankWithoutRowsDrawsWithTheOthers) {
  using Drop = std::function<at::Tensor(const at::Tensor&)>;
  const std::pair<const char*, Drop> drops[] = {
      {"dropout", [](auto& x) { return at::dropout(x, 0.5, true); }},
      {"dropout_",
       [](auto& x) {
         auto copy = x.clone();
         return at::dropout_(copy, 0.5, true);
       }},
      {"alpha_dropout", [](auto& x) { return at::alpha_dropout(x, 0.5, true); }},
      {"feature_dropout", [](auto& x) { return at::feature_dropout(x, 0.5, true); }},
      {"feature_alpha_dropout", [](auto& x) { return at::feature_alpha_dropout(x, 0.5, true); }},
      {"in evaluation", [](auto& x) { return at::dropout(x, 0.5, false); }},
  };
  auto mesh = line();
  auto empty = world_size() - 1;  // the rank without rows
  auto x = at::arange(empty * 3 * 4 * 5, at::kDouble).view({empty * 3, 4, 5}).cos();
  auto part = [&](const at::Tensor& whole) {
    return rank() == empty ? whole.narrow(0, 0, 0) : whole.narrow(0, rank() * 3, 3);
  };
  for (auto& [name, drop] : drops) {
    torch::manual_seed(21);
    auto expected = drop(x), next = at::rand({3});
    torch::manual_seed(21);
    at::Tensor drawn;
    {
      LocalRandomScope scope(mesh);
      drawn = drop(part(x).requires_grad_());
    }
    EXPECT_TRUE(drawn.equal(part(expected))) << name;
    EXPECT_TRUE(at::rand({3}).equal(next)) << name;
  }
}

TEST(LocalRandomScope, DrawsNothingWhereTheWholeHasNoElements) {
  torch::manual_seed(22);
  auto next = at::rand({3});
  torch::manual_seed(22);
  {
    LocalRandomScope scope(line());
    EXPECT_EQ(at::dropout(at::ones({3, 0}), 0.5, true).numel(), 0);
  }
  EXPECT_TRUE(at::rand({3}).equal(next));
}

}  // namespace
}  // namespace intarsia::processes_random_test
