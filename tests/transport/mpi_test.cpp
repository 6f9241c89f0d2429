// The engine over MPI with threads as ranks, and an MPI between them that is not there: see fake_mpi.h.

#include <gtest/gtest.h>

#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/transport/mpi/mpi_group.h"
#include "tests/support/error_text.h"
#include "tests/support/fake_mpi.h"

namespace intarsia::transport_mpi_test {
namespace {

using std::chrono::milliseconds;

struct Setting {
  int64_t longest = 1 << 30;
  MpiThreads threads = MpiThreads::multiple;
  milliseconds timeout = std::chrono::seconds(60);
};

// Runs `play(group, me)` on n threads.
template <class Play>
void on_mpi(int n, const Setting& setting, const std::shared_ptr<FakeMpi>& mpi, Play play) {
  std::vector<std::thread> threads;
  for (int me = 0; me < n; ++me) {
    threads.emplace_back([&, me] {
      at::NoGradGuard no_grad;
      auto port = std::make_shared<FakePort>(mpi, me, n, setting.threads);
      port->longest = setting.longest;
      std::vector<int64_t> ranks(n);
      for (int j = 0; j < n; ++j) ranks[j] = j;
      auto side = std::make_shared<MpiEndpoint>(std::make_shared<WatchedLine>(ranks, me, setting.timeout, "mpi"));
      auto group = make_mpi_group(std::make_shared<MpiProgressEngine>(port), side);
      play(*group, int64_t{me});
    });
  }
  for (auto& thread : threads) thread.join();
}

template <class Play>
void on_mpi(int n, const Setting& setting, Play play) {
  on_mpi(n, setting, std::make_shared<FakeMpi>(), play);
}

Collective what(Collective::Kind kind, const at::Tensor& t, std::optional<ReduceOp> op = std::nullopt) {
  return collective_of(kind, Line{"x", 1, {{0}}, {0}}, t, op);
}

at::Tensor brought(int64_t member, int64_t numel) { return at::arange(numel).add(member * 1000).to(at::kFloat); }

at::Tensor total(int64_t n, int64_t numel) {
  auto sum = brought(0, numel);
  for (int64_t j = 1; j < n; ++j) sum.add_(brought(j, numel));
  return sum;
}

void end(const Wait& wait) {
  if (wait) wait();
}

void add_up(const Group& group, int64_t me, int64_t numel) {
  auto mine = brought(me, numel), result = at::empty({numel});
  end(group.all_reduce(what(Collective::all_reduce, mine, ReduceOp::sum), mine, result, false));
}

// From what fits into a head to many pieces; a message may also be longer than MPI can count.
TEST(Mpi, SumsOfAllSizesAreThoseOfTheOrderOfTheLine) {
  for (int64_t longest : {1 << 30, 5000}) {
    for (int n : {2, 3, 5}) {
      on_mpi(n, {longest}, [&](const Group& group, int64_t me) {
        for (int64_t numel : {0, 1, 7, 512, 513, 1500, 5000, 70001, 400001}) {
          auto mine = brought(me, numel), result = at::empty({numel});
          end(group.all_reduce(what(Collective::all_reduce, mine, ReduceOp::sum), mine, result, me % 2));
          EXPECT_TRUE(at::equal(result, total(n, numel))) << n << " members, " << numel << " floats";
        }
      });
    }
  }
}

TEST(Mpi, UnevenAndEmptyPartsReachTheirPlaces) {
  constexpr int n = 3;
  for (int64_t unit : {1, 400, 100000}) {
    on_mpi(n, {}, [&](const Group& group, int64_t me) {
      auto count = [&](int64_t from, int64_t to) { return (from + 2 * to) % 3 * unit; };
      MemberCounts gives, takes, gathers{0, unit, 2 * unit};
      std::vector<at::Tensor> sent, expected, all;
      for (int64_t j = 0; j < n; ++j) {
        gives.push_back(count(me, j)), takes.push_back(count(j, me));
        sent.push_back(at::full({gives[j]}, 10. * me + j)), expected.push_back(at::full({takes[j]}, 10. * j + me));
        all.push_back(at::full({gathers[j]}, double(j)));
      }
      auto from = at::cat(sent), to = at::empty_like(at::cat(expected)), gathered = at::empty({3 * unit});
      end(group.all_to_all(what(Collective::all_to_all, from), from, gives, to, takes));
      EXPECT_TRUE(at::equal(to, at::cat(expected))) << unit;
      end(group.all_gather(what(Collective::all_gather, all[me]), all[me], gathered, gathers));
      EXPECT_TRUE(at::equal(gathered, at::cat(all))) << unit;
      auto parts = brought(me, 3 * unit), part = at::empty({gathers[me]});
      end(group.reduce_scatter(what(Collective::reduce_scatter, parts, ReduceOp::sum), parts, gathers, part));
      EXPECT_TRUE(at::equal(part, total(n, 3 * unit).narrow(0, me == 2 ? unit : 0, me * unit))) << unit;
      auto buffer = brought(me, unit);
      end(group.broadcast(what(Collective::broadcast, buffer), buffer, 1));
      EXPECT_TRUE(at::equal(buffer, brought(1, unit))) << unit;
    });
  }
}

// With a thread of our own, and without.
TEST(Mpi, WhatIsUnderWayEndsInAnyOrderOfWaits) {
  constexpr int n = 3;
  for (auto threads : {MpiThreads::multiple, MpiThreads::serialized, MpiThreads::funneled}) {
    on_mpi(n, {1 << 30, threads}, [&](const Group& group, int64_t me) {
      std::vector<Wait> waits;
      std::vector<at::Tensor> sums;
      for (int64_t numel : {3, 150000, 5, 40000, 150000, 2000}) {
        auto mine = brought(me, numel);
        sums.push_back(at::empty({numel}));
        waits.push_back(group.all_reduce(what(Collective::all_reduce, mine, ReduceOp::sum), mine, sums.back(), true));
      }
      if (me == 1) std::reverse(waits.begin(), waits.end());
      if (me == 2) std::rotate(waits.begin(), waits.begin() + 2, waits.end());
      for (auto& wait : waits) end(wait);
      for (auto& sum : sums) EXPECT_TRUE(at::equal(sum, total(n, sum.numel()))) << sum.numel();
    });
  }
}

TEST(Mpi, WhatNobodyWaitsForReachesTheOthersAll) {
  auto mpi = std::make_shared<FakeMpi>();
  on_mpi(2, {}, mpi, [&](const Group& group, int64_t me) {
    auto large = brought(0, 100000 * (1 - me)).resize_({100000});
    auto wait = group.broadcast(what(Collective::broadcast, large), large, 0);
    if (me == 0) return;  // and leaves
    std::this_thread::sleep_for(milliseconds(50));
    end(wait);
    EXPECT_TRUE(at::equal(large, brought(0, 100000)));
  });
  EXPECT_EQ(mpi->unreceived(), 0u);
}

TEST(Mpi, RanksInDifferentCollectivesAreToldBothSides) {
  on_mpi(2, {}, [&](const Group& group, int64_t me) {
    add_up(group, me, 3);
    auto text = error_text<c10::DistBackendError>([&] {
      if (me == 0) return add_up(group, me, 4);
      auto mine = brought(me, 4), all = at::empty({8});
      end(group.all_gather(what(Collective::all_gather, mine), mine, all, {4, 4}));
    });
    EXPECT_EQ(text,
              me == 0
                  ? "collective 1 on axis \"x\": rank 0 is in all_reduce(sum) of 4 floats for a direct call, rank 1 in "
                    "all_gather of 4 floats (its collective 1). All ranks of a line must run the same collectives in "
                    "the same order."
                  : "collective 1 on axis \"x\": rank 1 is in all_gather of 4 floats for a direct call, rank 0 in "
                    "all_reduce(sum) of 4 floats (its collective 1). All ranks of a line must run the same collectives "
                    "in the same order.");
    auto again = error_text<c10::DistBackendError>([&] { add_up(group, me, 3); });
    EXPECT_EQ(again, "this group has failed before: " + text);
  });
}

TEST(Mpi, AMessageThatIsTooLongIsNoNumber) {
  for (int64_t numel : {100, 3000, 300000}) {
    on_mpi(2, {}, [&](const Group& group, int64_t me) {
      auto text = error_text<c10::DistBackendError>([&] { add_up(group, me, me ? 3 * numel : numel); });
      EXPECT_NE(text.find("collective 0 on axis \"x\": rank "), text.npos) << text;
    });
  }
}

TEST(Mpi, AnErrorOfMpiNamesTheRank) {
  auto mpi = std::make_shared<FakeMpi>();
  mpi->broken = 1;
  on_mpi(2, {}, mpi, [&](const Group& group, int64_t me) {
    if (me == 1) return;
    auto text = error_text<c10::DistBackendError>([&] { add_up(group, me, 4); });
    EXPECT_EQ(text, "MPI reports of the messages with rank 1: broken");
  });
}

TEST(Mpi, RanksThatDoNotTakePartAreNamedWhenTheTimeIsOver) {
  for (int64_t numel : {4, 100000}) {
    on_mpi(4, {1 << 30, MpiThreads::multiple, milliseconds(300)}, [&](const Group& group, int64_t me) {
      if (me == 1 || me == 2) return std::this_thread::sleep_for(milliseconds(600));
      auto text = error_text<c10::DistBackendError>([&] { add_up(group, me, numel); });
      EXPECT_TRUE(text.starts_with("ranks 1, 2 did not take part within 0.3 s. ") ||
                  text.find(" is gone (it failed)") != text.npos)
          << text;
    });
  }
}

// Rank 2 waits for rank 0, which has failed because of rank 1.
TEST(Mpi, ARankThatFailedIsKnownToThoseWhoWaitForIt) {
  on_mpi(3, {}, [&](const Group& group, int64_t me) {
    auto text = error_text<c10::DistBackendError>([&] {
      auto mine = at::empty({0}), to = at::empty({me == 1 ? 0 : 1});
      MemberCounts none(3, 0), awaited{0, me == 0, 0};
      if (me == 2) awaited = {1, 0, 0};
      if (me == 1) return add_up(group, me, 7);
      end(group.all_to_all(what(Collective::all_to_all, mine), mine, none, to, awaited));
    });
    auto mismatch = "rank 0 is in all_to_all of 0 floats for a direct call, rank 1 in all_reduce(sum)";
    EXPECT_TRUE(me != 0 || text.find(mismatch) != text.npos) << text;
    EXPECT_TRUE(me != 2 || text == "rank 0 is gone (it failed). See why it ended.") << text;
  });
}

TEST(Mpi, CollectivesBelongToOneThreadWhereMpiAllowsNoOther) {
  on_mpi(2, {1 << 30, MpiThreads::funneled}, [&](const Group& group, int64_t me) {
    std::string text;
    std::thread([&] { text = error_text<c10::Error>([&] { add_up(group, me, 3); }); }).join();
    EXPECT_EQ(
        text,
        "MPI was started with MPI_THREAD_FUNNELED, so that only the thread that started it may run collectives. Call "
        "MPI_Init_thread with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE.");
    add_up(group, me, 3);
  });
}

}  // namespace
}  // namespace intarsia::transport_mpi_test
