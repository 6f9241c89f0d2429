#include "intarsia/comm/call_log.h"

#include <gtest/gtest.h>

#include <thread>

#include "intarsia/comm/collective.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia::comm_call_log_test {
namespace {

const Layout* cut_layout() { return Layout::get(init_device_mesh(c10::kCPU, {2}, {"tp"}), {Shard(0)}); }

TEST(Calls, TheSameCallsOnTheSameTensorsHaveTheSameOrigin) {
  auto world = simulate(2);
  CallLog a, b;
  auto* layout = cut_layout();
  for (auto* log : {&a, &b}) log->add("aten::mul", layout, 7, log->add_new("from_local", layout, 5));
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_NE(a.add_new("from_local", layout, 5).hash, a.add_new("from_local", layout, 5).hash);
  EXPECT_NE(a.hash(), b.hash());
}

TEST(Calls, WhatALogDidBesideDoesNotChangeAnOrigin) {
  auto world = simulate(2);
  CallLog a, b;
  auto* layout = cut_layout();
  auto x = a.add_new("from_local", layout, 5), y = b.add_new("from_local", layout, 5);
  b.add("aten::exp", layout, 9, y);
  EXPECT_EQ(a.add("aten::mul", layout, 7, x).hash, b.add("aten::mul", layout, 7, y).hash);
  EXPECT_NE(a.hash(), b.hash());
}

TEST(Calls, TheFirstDifferenceIsNamedWithBothSides) {
  auto world = simulate(2);
  CallLog a, b;
  auto* layout = cut_layout();
  auto x = a.add_new("from_local", layout, 5), y = b.add_new("from_local", layout, 5);
  EXPECT_EQ(first_difference(a.lines(1), 0, b.lines(1), 1), "");
  a.add("aten::mul", layout, 7, x);
  a.add("full_tensor", layout, 8, x);
  b.add("full_tensor", layout, 8, y);
  EXPECT_EQ(first_difference(a.lines(3), 0, b.lines(2), 1),
            " The first call in which they differ is 2 on the mesh: rank 0 called aten::mul of what call 1 made, "
            "[S(0)]; rank 1 called "
            "full_tensor of what call 1 made, [S(0)].");
  EXPECT_EQ(first_difference(a.lines(2), 0, b.lines(1), 1),
            " The first call in which they differ is 2 on the mesh: rank 0 called aten::mul of what call 1 made, "
            "[S(0)]; rank 1 called "
            "nothing yet.");
}

TEST(Calls, OnlyTheLastOnesAreRemembered) {
  auto world = simulate(2);
  CallLog a, b;
  auto* layout = cut_layout();
  b.add_new("zeros", layout, 1);
  for (uint64_t i = 0; i < CallLog::kKept + 5; ++i) {
    a.add_new("from_local", layout, 5);
    b.add_new("from_local", layout, 5);
  }
  EXPECT_EQ(a.lines(a.count()).size(), CallLog::kKept);
  EXPECT_EQ(first_difference(a.lines(a.count()), 0, b.lines(a.count()), 1),
            " They differ since before the calls that they remember, of which the oldest is 7 on the mesh: rank 0 "
            "called from_local, [S(0)]; "
            "rank 1 called from_local, [S(0)].");
}

TEST(Calls, EveryThreadHasItsOwn) {
  auto world = simulate(2);
  auto mesh = cut_layout()->mesh();
  calls_on(mesh).add_new("from_local", cut_layout(), 5);
  std::thread([&] { EXPECT_EQ(calls_on(mesh.hash()), nullptr); }).join();
  EXPECT_NE(calls_on(mesh.hash()), nullptr);
}

TEST(Calls, TheOriginOfWhatIsMovedIsPartOfTheFingerprint) {
  Collective call;
  auto before = call.fingerprint();
  call.origin = 5;
  EXPECT_NE(call.fingerprint(), before);
}

}  // namespace
}  // namespace intarsia::comm_call_log_test
