// Shared memory with threads as ranks: each has its own end of the line.

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>

#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/interrupts.h"
#include "intarsia/transport/shm/shm_group.h"
#include "tests/support/error_text.h"

namespace intarsia::transport_shm_test {
namespace {

using std::chrono::milliseconds;
using Ends = std::vector<std::shared_ptr<const Group>>;

Ends ends_of_a_line(int64_t n, milliseconds timeout = std::chrono::seconds(60)) {
  std::shared_ptr<Segment> segment = Segment::make(n);
  std::vector<int64_t> ranks(n);
  for (int64_t j = 0; j < n; ++j) ranks[j] = j;
  Ends ends;
  for (int64_t j = 0; j < n; ++j) {
    ends.push_back(
        make_shm_group({std::make_shared<WatchedLine>(ranks, j, timeout, "shm"), segment, std::vector<Process>(n)}));
  }
  return ends;
}

template <class Play>
void on_threads(const Ends& ends, Play play) {
  std::vector<std::thread> threads;
  for (size_t j = 0; j < ends.size(); ++j) {
    threads.emplace_back([&, j] {
      at::NoGradGuard no_grad;
      play(*ends[j], int64_t(j));
    });
  }
  for (auto& thread : threads) thread.join();
}

Collective call(Collective::Kind kind, const at::Tensor& t, std::optional<ReduceOp> op = std::nullopt) {
  return collective_of(kind, Line{"x", 1, {{0}}, {0}}, t, op);
}

at::Tensor value_of(int64_t member, int64_t numel) { return at::arange(numel).add(member * 1000).to(at::kFloat); }

at::Tensor sum_of(int64_t n, int64_t numel) {
  auto sum = value_of(0, numel);
  for (int64_t j = 1; j < n; ++j) sum.add_(value_of(j, numel));
  return sum;
}

void finish_it(const Wait& wait) {
  if (wait) wait();
}

// 400,000 floats are more than all rings of a member hold.
TEST(Shm, SumsOfAllSizesAreThoseOfTheOrderOfTheLine) {
  for (int64_t n : {2, 3, 5}) {
    on_threads(ends_of_a_line(n), [&](const Group& group, int64_t me) {
      for (int64_t numel : {1, 7, 8, 1000, 5000, 70001, 400000}) {
        auto mine = value_of(me, numel), result = at::empty({numel});
        finish_it(group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, me % 2));
        EXPECT_TRUE(at::equal(result, sum_of(n, numel))) << n << " members, " << numel << " floats";
      }
    });
  }
}

TEST(Shm, ManyCollectivesUnderWayEndInAnyOrderOfWaits) {
  constexpr int64_t n = 3, numel = 150000;
  on_threads(ends_of_a_line(n), [&](const Group& group, int64_t me) {
    std::vector<Wait> waits;
    std::vector<at::Tensor> sums, gathered;
    for (int i = 0; i < 6; ++i) {
      auto mine = value_of(me, numel + i);
      sums.push_back(at::empty({numel + i}));
      gathered.push_back(at::empty({n * 10}));
      waits.push_back(group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, sums.back(), true));
      auto part = value_of(me, 10);
      waits.push_back(group.all_gather(call(Collective::all_gather, part), part, gathered.back(), {10, 10, 10}));
    }
    if (me == 1) std::reverse(waits.begin(), waits.end());
    if (me == 2) waits.clear();  // nobody waits, but it goes on
    for (auto& wait : waits) finish_it(wait);
    auto flag = at::ones({1}), all = at::empty({n});  // all before it has ended
    finish_it(group.all_gather(call(Collective::all_gather, flag), flag, all, {1, 1, 1}));
    for (int i = 0; i < 6; ++i) {
      EXPECT_TRUE(at::equal(sums[i], sum_of(n, numel + i))) << me;
      EXPECT_TRUE(at::equal(gathered[i], at::cat({value_of(0, 10), value_of(1, 10), value_of(2, 10)})));
    }
  });
}

// Member 0 begins and then only waits for a flag that member 1 raises when it has all that it needs of member 0.
TEST(Shm, WhatIsUnderWayGoesOnWithoutAWait) {
  constexpr int64_t numel = 1000000;
  std::atomic<bool> received{false};
  on_threads(ends_of_a_line(2), [&](const Group& group, int64_t me) {
    auto mine = value_of(me, numel), all = at::empty({2 * numel});
    auto wait = group.all_gather(call(Collective::all_gather, mine), mine, all, {numel, numel});
    if (me == 1) finish_it(wait), received = true;
    while (!received) std::this_thread::yield();
    finish_it(wait);
    EXPECT_TRUE(at::equal(all, at::cat({value_of(0, numel), value_of(1, numel)})));
  });
}

TEST(Shm, AnEmptyCollectiveEndsBehindOneThatIsUnderWay) {
  on_threads(ends_of_a_line(2), [&](const Group& group, int64_t me) {
    auto mine = value_of(me, 5), all = at::empty({10}), nothing = at::empty({0}), none = at::empty({0});
    if (me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the other one has to wait
    auto wait = group.all_gather(call(Collective::all_gather, mine), mine, all, {5, 5});
    for (int i = 0; i < 3; ++i)
      group.all_reduce(call(Collective::all_reduce, nothing, ReduceOp::sum), nothing, none, false);
    finish_it(wait);
    EXPECT_TRUE(at::equal(all, at::cat({value_of(0, 5), value_of(1, 5)})));
  });
}

TEST(Shm, ThreadsOfARankMayUseLinesOfTheirOwn) {
  auto first = ends_of_a_line(2), second = ends_of_a_line(2);
  on_threads({first[0], first[1], second[0], second[1]}, [&](const Group& group, int64_t j) {
    for (int i = 0; i < 200; ++i) {
      auto mine = value_of(j % 2, 33), result = at::empty({33});
      group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false);
      ASSERT_TRUE(at::equal(result, sum_of(2, 33)));
    }
  });
}

TEST(Shm, AMemberThatIsLateIsNamedWhenTheTimeIsOver) {
  auto ends = ends_of_a_line(3, milliseconds(300));
  on_threads({ends[0], ends[2]}, [&](const Group& group, int64_t) {
    auto mine = at::ones({4}), result = at::empty({4});
    auto text = error_text<c10::DistBackendError>(
        [&] { group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false); });
    EXPECT_EQ(text,
              "rank 1 did not take part within 0.3 s. Stuck, gone, or running other code: look at the output. "
              "INTARSIA_TIMEOUT sets the wait in seconds.");
  });
}

TEST(Shm, AMemberThatLeavesIsNamed) {
  auto ends = ends_of_a_line(2);
  ends.pop_back();
  auto mine = at::ones({4}), result = at::empty({4});
  EXPECT_EQ(error_text<c10::DistBackendError>(
                [&] { ends[0]->all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false); }),
            "rank 1 is gone (it left the line). See why it ended.");
}

// What a member wrote before it left can still be read.
TEST(Shm, AMemberMayLeaveWhenItHasDoneItsPart) {
  auto ends = ends_of_a_line(2);
  auto sent = value_of(1, 5), received = at::empty({5});
  finish_it(ends[1]->broadcast(call(Collective::broadcast, sent), sent, 1));
  ends.pop_back();
  finish_it(ends[0]->broadcast(call(Collective::broadcast, received), received, 1));
  EXPECT_TRUE(at::equal(received, sent));
}

TEST(Shm, AnotherCollectiveIsNotTakenForOurs) {
  auto ends = ends_of_a_line(2);
  on_threads(ends, [&](const Group& group, int64_t me) {
    auto mine = at::ones({me == 0 ? 4 : 6}), result = at::empty_like(mine);
    auto text = error_text<c10::DistBackendError>(
        [&] { group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false); });
    if (me == 0 && text.starts_with("collective")) {
      EXPECT_EQ(
          text,
          "collective 0 on axis \"x\": rank 0 is in all_reduce(sum) of 4 floats for a direct call, rank 1 in "
          "all_reduce(sum) of 6 floats (its collective 0). All ranks of a line must run the same collectives in the "
          "same order.");
    } else {  // the other was faster to tell, and has left
      EXPECT_NE(text, "");
    }
  });
}

// The first thread is told to stop as Python is by Ctrl-C.
TEST(Shm, AnInterruptedMemberTellsTheOthers) {
  static std::thread::id stopped;
  static constexpr Interrupts kStop{[] {
                                      if (std::this_thread::get_id() == stopped) throw std::runtime_error("stop");
                                    },
                                    [] {}, [](const std::exception_ptr&) { return true; }};
  set_interrupts(&kStop);
  auto ends = ends_of_a_line(3);
  on_threads({ends[0], ends[1]}, [&](const Group& group, int64_t me) {
    if (me == 0) stopped = std::this_thread::get_id();
    auto mine = at::ones({4}), result = at::empty({4});
    auto wait = [&] { group.all_reduce(call(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false); };
    if (me == 0) {
      EXPECT_THROW(wait(), Interruption);
    } else {
      EXPECT_EQ(error_text<c10::DistBackendError>(wait),
                "rank 0 was interrupted while it waited. Start the job again.");
    }
  });
  set_interrupts(nullptr);
}

TEST(Shm, MemoryGrowsWithMembersNotWithTheirPairs) {
  EXPECT_LE(Segment::make(2)->bytes(), 2 << 21);
  EXPECT_LE(Segment::make(64)->bytes(), 64 << 21);
}

TEST(Shm, MemoryThatCannotBeHadIsAnError) {
  rlimit before{}, none{1 << 16, 0};
  getrlimit(RLIMIT_FSIZE, &before);
  none.rlim_max = before.rlim_max;
  auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &none);
  auto text = error_text<c10::Error>([] { Segment::make(2); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(text.substr(0, 12), "no room for ");
  EXPECT_NE(text.find("bytes of shared memory: File too large"), text.npos) << text;
}

}  // namespace
}  // namespace intarsia::transport_shm_test
