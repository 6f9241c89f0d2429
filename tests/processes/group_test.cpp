// Worlds and meshes over process groups that exist already.

#include <gtest/gtest.h>

#include <thread>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "intarsia/comm/axis.h"
#include "intarsia/job/engines.h"
#include "intarsia/job/from_group.h"
#include "intarsia/job/init.h"
#include "intarsia/transport/gloo/gloo_process_groups.h"
#include "tests/support/error_text.h"
#include "tests/support/worlds.h"

namespace intarsia::processes_group_test {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTimeout{20000};

// The store that the launcher serves, with keys of this test only.
c10::intrusive_ptr<c10d::Store> store_for(const std::string& test) {
  static auto store = [] {
    c10d::TCPStoreOptions options;
    options.port = std::stoi(getenv("MASTER_PORT"));
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>(getenv("MASTER_ADDR"), options);
  }();
  return c10::make_intrusive<c10d::PrefixStore>(test, store);
}

c10::intrusive_ptr<c10d::Backend> gloo_group(const std::string& test, std::vector<int64_t> ranks) {
  static GlooMaker gloo("lo", kTimeout);
  int position = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
  return gloo.make(store_for(test), position, ranks.size());
}

double sum_over(const DeviceMesh& mesh, int64_t axis = 0) {
  return Axis::of(mesh, axis).all_reduce({at::full({1}, double(sign_of(rank())))}, ReduceOp::sum)[0].item<double>();
}

std::vector<int64_t> descending() {
  std::vector<int64_t> ranks;
  for (int64_t r = world_size(); r-- > 0;) ranks.push_back(r);
  return ranks;
}

// A world that adopts groups for a test alone: lines of the others travel as before. Worlds are never freed.
const World& world_that_adopts(const std::string& test) {
  return *choose_engine("gloo")({rank(), world_size(), store_for("world/" + test), "lo", kTimeout}).release();
}

TEST(FromGroup, AMeshHasTheRanksOfTheGroupInItsOrder) {
  WorldScope scope(world_that_adopts("order"));
  auto ranks = descending();
  auto mesh = mesh_from_group(gloo_group("order", ranks), c10::DeviceType::CPU, "tp");
  EXPECT_EQ(mesh.ranks().vec(), ranks);
  EXPECT_EQ(mesh.axis_name(0), "tp");
  EXPECT_EQ(sum_over(mesh), sum_of_signs(world_size()));
}

TEST(FromGroup, AGroupOfSomeRanksMakesAMeshOfThese) {
  if (rank() > 1) return;
  WorldScope scope(world_that_adopts("some"));
  auto mesh = mesh_from_group(gloo_group("some", {0, 1}), c10::DeviceType::CPU);
  EXPECT_EQ(sum_over(mesh), 11);
}

TEST(FromGroup, AGridTakesAGroupPerAxis) {
  if (world_size() != 4) GTEST_SKIP() << "for a mesh of 2 x 2";
  WorldScope scope(world_that_adopts("grid"));
  auto row = rank() / 2 * 2, column = rank() % 2;
  std::vector<c10::intrusive_ptr<c10d::Backend>> groups = {
      gloo_group("column" + std::to_string(column), {column, column + 2}),
      gloo_group("row" + std::to_string(row), {row, row + 1})};
  auto mesh = mesh_from_groups(groups, c10::DeviceType::CPU, {2, 2}, {0, 1, 2, 3}, {"dp", "tp"});
  EXPECT_EQ(sum_over(mesh, 0), sign_of(column) + sign_of(column + 2));
  EXPECT_EQ(sum_over(mesh, 1), sign_of(row) + sign_of(row + 1));
}

TEST(FromGroup, AGroupOfOtherRanksThanTheLineIsAnError) {
  auto group = gloo_group("other", descending());
  std::vector<int64_t> ranks(world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto text = error_text<c10::ValueError>(
      [&] { mesh_from_groups(std::vector{group}, c10::DeviceType::CPU, {world_size()}, ranks, {"tp"}); });
  EXPECT_EQ(text,
            c10::str("[mesh_from_groups] the group for axis tp has the ranks ", c10::ArrayRef<int64_t>(descending()),
                     ", but the line of rank ", rank(), " on DeviceMesh(cpu, tp=", world_size(), ") has ",
                     c10::ArrayRef<int64_t>(ranks), ". Make them agree, in order too."));
  EXPECT_EQ(error_text<c10::ValueError>([&] {
              mesh_from_groups(std::vector{group, group}, c10::DeviceType::CPU, {world_size()}, ranks, {"tp"});
            }),
            c10::str("[mesh_from_groups] 2 groups were given for DeviceMesh(cpu, tp=", world_size(),
                     "), which has 1 axes. Give one group per axis."));
}

// Without a store, lines inside the group travel over it.
TEST(FromGroup, AGroupWithoutAStoreCarriesItsSubLines) {
  std::vector<int64_t> everyone(world_size());
  std::iota(everyone.begin(), everyone.end(), 0);
  auto* engine =
      choose_engine("gloo")({rank(), world_size(), nullptr, "", kTimeout}).release();  // worlds are never freed
  engine->adopt(everyone, gloo_group("no store", everyone));
  WorldScope scope(*engine);
  EXPECT_EQ(sum_over(DeviceMesh(c10::DeviceType::CPU, {world_size()}, descending())), sum_of_signs(world_size()));
  if (world_size() != 4) return;
  DeviceMesh grid(c10::DeviceType::CPU, {2, 2}, everyone);
  EXPECT_EQ(sum_over(grid, 0), sign_of(rank() % 2) + sign_of(rank() % 2 + 2));
  EXPECT_EQ(sum_over(grid, 1), sign_of(rank() / 2 * 2) + sign_of(rank() / 2 * 2 + 1));
}

// Nobody waits for anybody before that: every rank has the error, and the job goes on.
TEST(World, AnEngineThatDoesNotExistIsAnErrorOnEveryRank) {
  auto* world = process_world();
  set_process_world(nullptr);
  InitOptions options;
  options.engine = "shmm";
  auto text = error_text<c10::ValueError>([&] { init(options); });
  auto over_store =
      error_text<c10::ValueError>([&] { init_from(store_for("shmm"), world->hosted()[0], world->size(), options); });
  set_process_world(world);
  EXPECT_EQ(text, "[init] there is no engine \"shmm\". Known: auto, gloo, mpi, shm, sockets.");
  EXPECT_EQ(over_store, text);
  barrier();
}

TEST(World, RanksOfOneLineMayBeUsedByTwoThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([t] {
      // Each thread has its own line: the same ranks in another order for the second.
      auto ranks = descending();
      if (t) std::reverse(ranks.begin(), ranks.end());
      DeviceMesh mesh(c10::DeviceType::CPU, {world_size()}, ranks);
      for (int i = 0; i < 50; ++i) EXPECT_EQ(sum_over(mesh), sum_of_signs(world_size()));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(World, InitAgainReturnsTheSameWorld) {
  auto& world = current_world();
  EXPECT_EQ(&init(), &world);
  EXPECT_FALSE(world.simulated());
  auto* asked = getenv("INTARSIA_ENGINE");
  std::string engine = asked ? asked : "auto";
  EXPECT_EQ(world.text(),
            "a job of " + std::to_string(world.size()) + " ranks over " + (engine == "auto" ? "shm and gloo" : engine));
  EXPECT_EQ(world.hosted(), std::vector<int64_t>{rank()});
}

}  // namespace
}  // namespace intarsia::processes_group_test
