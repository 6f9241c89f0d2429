#include "intarsia/core/mesh.h"

#include <thread>
#include <unordered_set>

#include <gtest/gtest.h>

#include "intarsia/simulation/simulation.h"
#include "tests/support/error_text.h"

namespace intarsia::core_mesh_test {
namespace {

using c10::kCPU;
using Ints = std::vector<int64_t>;

std::vector<Ints> groups(const DeviceMesh& mesh) {
  std::vector<Ints> result;
  for (int64_t g = 0; g < mesh.group_count(); ++g) result.push_back(mesh.ranks(g).vec());
  return result;
}

const Slot& slot_of(const DeviceMesh& mesh, int64_t rank) {
  for (auto& slot : mesh.slots()) {
    if (slot.rank == rank) return slot;
  }
  throw std::out_of_range("no slot");
}

// A job of `size` processes seen from the one that is `rank`. Meshes keep their world, so it is never freed.
const World& process_of(int64_t size, int64_t rank) {
  struct Process final : World {
    using World::World;
    bool simulated() const override { return false; }
    std::string text() const override { return std::to_string(size()) + " processes"; }
  };
  return *new Process(size, {rank});
}

TEST(DeviceMesh, TakesAllRanksOfTheWorldInOrder) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3}, {"dp", "tp"});
  EXPECT_EQ(mesh.shape(), (Ints{2, 3}));
  EXPECT_EQ(mesh.ranks(), (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.group_count(), 1);
  EXPECT_EQ(mesh.device_type(), kCPU);
  EXPECT_EQ(&mesh.world(), &current_world());
}

TEST(DeviceMesh, AxesGoByNameAndByNumber) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3}, {"dp", "tp"});
  EXPECT_EQ(mesh.axis_of("tp"), 1);
  EXPECT_EQ(mesh.axis_name(0), "dp");
  EXPECT_EQ(mesh.axis_name(-1), "tp");
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_EQ(mesh.size(-1), 3);
}

TEST(DeviceMesh, AxesWithoutNamesAreCalledByTheirNumber) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3});
  EXPECT_TRUE(mesh.names().empty());
  EXPECT_EQ(mesh.axis_name(1), "1");
  EXPECT_EQ(mesh.axis_name(-2), "0");
}

TEST(DeviceMesh, CoordinatesAreRowMajor) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 2, 2});
  EXPECT_EQ(mesh.coordinate_of(0), (Ints{0, 0, 0}));
  EXPECT_EQ(mesh.coordinate_of(5), (Ints{1, 0, 1}));
  EXPECT_EQ(mesh.coordinate_of(8), std::nullopt);
  EXPECT_EQ(slot_of(mesh, 6).coordinate, (Ints{1, 1, 0}));
}

TEST(DeviceMesh, ExplicitRanksMayBeAPartOfTheWorldInAnyOrder) {
  auto world = simulate(6);
  DeviceMesh mesh(kCPU, {2, 2}, {5, 1, 4, 0}, {"a", "b"});
  EXPECT_EQ(mesh.coordinate_of(4), (Ints{1, 0}));
  EXPECT_EQ(mesh.coordinate_of(2), std::nullopt);
  Ints hosted;
  for (auto& slot : mesh.slots()) hosted.push_back(slot.rank);
  EXPECT_EQ(hosted, (Ints{0, 1, 4, 5}));  // ascending, whatever the order on the mesh
}

TEST(DeviceMesh, AMeshOfNoAxesHoldsOneRank) {
  auto mesh = init_device_mesh(kCPU, {});
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.text(), "DeviceMesh(cpu)");
  EXPECT_EQ(mesh.coordinate_of(0), Ints());
}

TEST(DeviceMesh, TextShowsTheShapeAndUnusualRanks) {
  auto world = simulate(8);
  EXPECT_EQ(str(init_device_mesh(kCPU, {2, 4}, {"dp", "tp"})), "DeviceMesh(cpu, dp=2, tp=4)");
  EXPECT_EQ(str(init_device_mesh(kCPU, {2, 4})), "DeviceMesh(cpu, 2, 4)");
  EXPECT_EQ(str(DeviceMesh(c10::kCUDA, {2}, {3, 1}, {"tp"})), "DeviceMesh(cuda, tp=2; ranks [3 1])");
  EXPECT_EQ(str(init_device_mesh(kCPU, {4, 2}, {"dp", "tp"})["tp"]),
            "DeviceMesh(cpu, tp=2; ranks [0 1] [2 3] [4 5] [6 7])");
  EXPECT_EQ(str(DeviceMesh()), "DeviceMesh()");
}

TEST(DeviceMesh, EqualMeshesAreEqualAndHashAlike) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(mesh, DeviceMesh(kCPU, {2, 2}, {0, 1, 2, 3}, {"dp", "tp"}));
  EXPECT_NE(mesh, init_device_mesh(kCPU, {2, 2}, {"dp", "pp"}));
  EXPECT_NE(mesh, init_device_mesh(kCPU, {2, 2}));
  EXPECT_NE(mesh, init_device_mesh(kCPU, {4, 1}, {"dp", "tp"}));
  EXPECT_NE(mesh, init_device_mesh(c10::kCUDA, {2, 2}, {"dp", "tp"}));
  EXPECT_NE(mesh, DeviceMesh(kCPU, {2, 2}, {0, 2, 1, 3}, {"dp", "tp"}));
  std::unordered_set<DeviceMesh> set = {mesh, init_device_mesh(kCPU, {2, 2}, {"dp", "tp"}), mesh["dp"]};
  EXPECT_EQ(set.size(), 2u);
}

TEST(DeviceMesh, MeshesOfDifferentWorldsDiffer) {
  auto mesh_of = [](int64_t n) {
    auto world = simulate(n);
    return DeviceMesh(kCPU, {2}, {0, 1});
  };
  EXPECT_EQ(mesh_of(4), mesh_of(4));
  EXPECT_NE(mesh_of(4), mesh_of(8));
}

TEST(Slice, HoldsAllItsGroupsSideBySide) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 4}, {"dp", "tp"});
  EXPECT_EQ(groups(mesh["tp"]), (std::vector<Ints>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(mesh["dp"]), (std::vector<Ints>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh["tp"].size(), 4);
  EXPECT_EQ(mesh["tp"].names(), std::vector<std::string>{"tp"});
  EXPECT_EQ(slot_of(mesh["tp"], 6).group, 1);
  EXPECT_EQ(slot_of(mesh["tp"], 6).coordinate, Ints{2});
  EXPECT_EQ(mesh["tp"].coordinate_of(6), Ints{2});
}

TEST(Slice, TakesSeveralAxesInTheOrderGiven) {
  auto world = simulate(12);
  auto mesh = init_device_mesh(kCPU, {2, 2, 3}, {"pp", "dp", "tp"});
  EXPECT_EQ(groups(mesh.slice({"dp", "tp"})), (std::vector<Ints>{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(mesh.slice({"tp", "pp"}).shape(), (Ints{3, 2}));
  EXPECT_EQ(groups(mesh.slice({"tp", "pp"})), (std::vector<Ints>{{0, 6, 1, 7, 2, 8}, {3, 9, 4, 10, 5, 11}}));
}

TEST(Slice, ByAllAxesIsTheMeshItself) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2}, {"dp", "tp"});
  EXPECT_EQ(mesh.slice({"dp", "tp"}), mesh);
}

TEST(Slice, OfASliceIsTheSliceOfTheWhole) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 2, 2}, {"a", "b", "c"});
  EXPECT_EQ(mesh.slice({"a", "c"})["c"].group_count(), 4);
  EXPECT_EQ(groups(mesh.slice({"b", "c"})["c"]), groups(mesh["c"]));
}

TEST(Slice, ByNumberTakesNegativeAxes) {
  auto world = simulate(6);
  auto named = init_device_mesh(kCPU, {2, 3}, {"dp", "tp"}), plain = init_device_mesh(kCPU, {2, 3});
  EXPECT_EQ(named.slice_axes({-1}), named["tp"]);
  EXPECT_EQ(named.slice_axes({1, 0}), named.slice({"tp", "dp"}));
  EXPECT_EQ(groups(plain.slice_axes({-2})), (std::vector<Ints>{{0, 3}, {1, 4}, {2, 5}}));
}

TEST(Flatten, ReadsAllAxesAsOne) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3}, {"dp", "tp"});
  EXPECT_EQ(str(mesh.flatten()), "DeviceMesh(cpu, dp_tp=6)");
  EXPECT_EQ(str(mesh.flatten("all")), "DeviceMesh(cpu, all=6)");
  EXPECT_EQ(str(init_device_mesh(kCPU, {2, 3}).flatten()), "DeviceMesh(cpu, 6)");
  EXPECT_EQ(str(init_device_mesh(kCPU, {2, 3}).flatten("all")), "DeviceMesh(cpu, all=6)");
}

TEST(Flatten, OfASliceKeepsItsGroups) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 2, 2}, {"pp", "dp", "tp"});
  EXPECT_EQ(str(mesh.slice({"dp", "tp"}).flatten()), "DeviceMesh(cpu, dp_tp=4; ranks [0 1 2 3] [4 5 6 7])");
}

TEST(Line, RunsThroughASlotAlongAnAxis) {
  auto world = simulate(6);
  auto mesh = init_device_mesh(kCPU, {2, 3});
  EXPECT_EQ(mesh.line(slot_of(mesh, 4), 0), (Ints{1, 4}));
  EXPECT_EQ(mesh.line(slot_of(mesh, 4), 1), (Ints{3, 4, 5}));
  EXPECT_EQ(mesh.line(slot_of(mesh, 4), -1), (Ints{3, 4, 5}));
}

TEST(Line, AlongSeveralAxesIsRowMajorInTheirOrder) {
  auto world = simulate(8);
  auto mesh = init_device_mesh(kCPU, {2, 2, 2});
  EXPECT_EQ(mesh.line(slot_of(mesh, 2), {0, 2}), (Ints{2, 3, 6, 7}));
  EXPECT_EQ(mesh.line(slot_of(mesh, 2), {2, 0}), (Ints{2, 6, 3, 7}));
  EXPECT_EQ(mesh.line(slot_of(mesh, 2), {}), Ints{2});
}

TEST(Line, StaysInTheGroupOfTheSlot) {
  auto world = simulate(8);
  auto tp = init_device_mesh(kCPU, {2, 4}, {"dp", "tp"})["tp"];
  EXPECT_EQ(tp.line(slot_of(tp, 1), 0), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(tp.line(slot_of(tp, 6), 0), (Ints{4, 5, 6, 7}));
}

TEST(Slots, AProcessSeesItsOwnRank) {
  WorldScope scope(process_of(8, 5));
  auto mesh = init_device_mesh(kCPU, {2, 4}, {"dp", "tp"});
  ASSERT_EQ(mesh.slots().size(), 1u);
  EXPECT_EQ(mesh.slots()[0].coordinate, (Ints{1, 1}));
  EXPECT_EQ(mesh.line(mesh.slots()[0], 1), (Ints{4, 5, 6, 7}));
  EXPECT_EQ(mesh["tp"].slots()[0].group, 1);
}

TEST(Slots, AProcessOutsideAMeshHasNone) {
  WorldScope scope(process_of(8, 5));
  DeviceMesh mesh(kCPU, {2}, {0, 1});
  EXPECT_TRUE(mesh.slots().empty());
  EXPECT_EQ(mesh.coordinate_of(5), std::nullopt);
}

TEST(MeshScope, TheInnermostMeshIsTheDefault) {
  auto world = simulate(4);
  auto outer = init_device_mesh(kCPU, {4}), inner = init_device_mesh(kCPU, {2, 2});
  MeshScope outer_scope(outer);
  {
    MeshScope inner_scope(inner);
    EXPECT_EQ(current_mesh("test"), inner);
  }
  EXPECT_EQ(current_mesh("test"), outer);
}

TEST(MeshScope, BelongsToItsThread) {
  auto world = simulate(4);
  MeshScope scope(init_device_mesh(kCPU, {4}));
  std::string text;
  std::thread([&] { text = error_text<c10::ValueError>([] { current_mesh("zeros"); }); }).join();
  EXPECT_EQ(text,
            "[zeros] no mesh was given and there is no MeshScope. Pass a mesh, or open a MeshScope around the call.");
}

TEST(MeshErrors, SizesThatDoNotFitTheWorld) {
  auto world = simulate(4);
  EXPECT_EQ(error_text<c10::ValueError>([] { init_device_mesh(kCPU, {2, 3}); }),
            "[init_device_mesh] a mesh of shape [2, 3] has 6 ranks, but the world is a simulation of 4 ranks. "
            "Their sizes must be equal; for a part of the world, pass the ranks to DeviceMesh.");
  EXPECT_EQ(error_text<c10::ValueError>([] { init_device_mesh(kCPU, {-2, -2}); }),
            "[DeviceMesh] the shape [-2, -2] has an axis of size -2. Every axis needs at least one rank.");
  EXPECT_EQ(error_text<c10::ValueError>([] { DeviceMesh(kCPU, {0}, {}); }),
            "[DeviceMesh] the shape [0] has an axis of size 0. Every axis needs at least one rank.");
}

TEST(MeshErrors, AWorldThatNobodyHasMadeIsNamedAsTheCause) {
  EXPECT_EQ(
      error_text<c10::ValueError>([] { init_device_mesh(kCPU, {2, 3}); }),
      "[init_device_mesh] a mesh of shape [2, 3] has 6 ranks, but neither init() nor simulate() has been called, so "
      "the world is "
      "one rank. Call init() first and start the program by a launcher (intarsia run -n 6), or open simulate(6).");
  EXPECT_EQ(error_text<c10::ValueError>([] { DeviceMesh(kCPU, {2}, {0, 1}); }),
            "[DeviceMesh] the ranks [0, 1] do not all exist: neither init() nor simulate() has been called, so the "
            "world is one rank. "
            "Call one of them first.");
}

TEST(MeshErrors, RanksThatDoNotFitTheShapeOrTheWorld) {
  auto world = simulate(4);
  auto text = [](Ints shape, Ints ranks) {
    return error_text<c10::ValueError>([&] { DeviceMesh(kCPU, shape, ranks); });
  };
  EXPECT_EQ(text({2, 2}, {0, 1, 2}),
            "[DeviceMesh] the shape [2, 2] needs 4 ranks, but 3 were given. Make the two agree.");
  EXPECT_EQ(text({3}, {0, 1, 0}), "[DeviceMesh] the ranks [0, 1, 0] repeat. A rank has one place on a mesh.");
  auto world_of_four = " do not all exist: the world is a simulation of 4 ranks. Use ranks below 4.";
  EXPECT_EQ(text({2}, {0, 4}), std::string("[DeviceMesh] the ranks [0, 4]") + world_of_four);
  EXPECT_EQ(text({2}, {-1, 0}), std::string("[DeviceMesh] the ranks [-1, 0]") + world_of_four);
}

TEST(MeshErrors, Names) {
  auto world = simulate(4);
  EXPECT_EQ(error_text<c10::ValueError>([] { init_device_mesh(kCPU, {2, 2}, {"dp"}); }),
            "[DeviceMesh] 1 names (dp) given for a mesh of 2 axes. Name every axis or none.");
  EXPECT_EQ(error_text<c10::ValueError>([] { init_device_mesh(kCPU, {2, 2}, {"dp", "dp"}); }),
            "[DeviceMesh] the axis names (dp, dp) repeat. Give each axis its own name.");
  EXPECT_EQ(error_text<c10::Error>([] { init_device_mesh(kCPU, {2, 2}, {"dp", "tp"})["pp"]; }),
            "[DeviceMesh] there is no axis \"pp\" in DeviceMesh(cpu, dp=2, tp=2). Its axes are dp, tp.");
  EXPECT_EQ(error_text<c10::Error>([] { init_device_mesh(kCPU, {2, 2})["pp"]; }),
            "[DeviceMesh] there is no axis \"pp\" in DeviceMesh(cpu, 2, 2). "
            "Give the axes names when you make the mesh.");
}

TEST(MeshErrors, Axes) {
  auto world = simulate(4);
  auto mesh = init_device_mesh(kCPU, {2, 2}, {"dp", "tp"});
  auto out_of_range = "[DeviceMesh] axis 2 is out of range: DeviceMesh(cpu, dp=2, tp=2) has 2 axes.";
  EXPECT_EQ(error_text<c10::IndexError>([&] { mesh.size(2); }), out_of_range);
  EXPECT_EQ(error_text<c10::IndexError>([&] { mesh.axis_name(2); }), out_of_range);
  EXPECT_EQ(error_text<c10::IndexError>([&] { mesh.slice_axes({2}); }), out_of_range);
  EXPECT_EQ(error_text<c10::IndexError>([&] { mesh.line(mesh.slots()[0], 2); }), out_of_range);
  auto not_distinct = "[DeviceMesh] slice needs one or more distinct axes of DeviceMesh(cpu, dp=2, tp=2).";
  EXPECT_EQ(error_text<c10::ValueError>([&] { mesh.slice({}); }), not_distinct);
  EXPECT_EQ(error_text<c10::ValueError>([&] { mesh.slice({"tp", "tp"}); }), not_distinct);
  EXPECT_EQ(error_text<c10::ValueError>([&] { mesh.slice_axes({1, -1}); }), not_distinct);
}

TEST(MeshErrors, AnEmptyMesh) {
  DeviceMesh mesh;
  EXPECT_FALSE(mesh.defined());
  EXPECT_EQ(error_text<c10::ValueError>([&] { mesh.size(); }),
            "[DeviceMesh] this mesh is empty. Make one with init_device_mesh.");
}

}  // namespace
}  // namespace intarsia::core_mesh_test
