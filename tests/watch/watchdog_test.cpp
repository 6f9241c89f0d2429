// What a wait finds out when nothing comes, without a transport: its signs are given.

#include <gtest/gtest.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "intarsia/watch/watchdog.h"
#include "tests/support/error_text.h"

namespace intarsia::watch_watchdog_test {
namespace {

using std::chrono::milliseconds;

// Rank 0 of a line of three waits for rank 1 in its first collective.
struct Wait : WaitingTransport {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  WatchedLine line{{0, 1, 2}, 0, milliseconds(200), "test", store, "key"};
  Collective call;
  std::optional<LostMember> lost;
  std::optional<int64_t> interrupted;
  std::vector<Farewell> farewells;

  Wait() {
    call.kind = Collective::all_gather;
    call.type = at::kFloat;
    call.count = 4;
    call.axis = "tp";
    line.number(call);
  }
  const Collective* current() const override { return &call; }
  std::vector<int64_t> awaited() override { return {1}; }
  std::optional<LostMember> find_lost(bool) override { return lost; }
  std::optional<int64_t> find_interrupted(const WatchedLine&) override { return interrupted; }
  void give_up(const std::string& text, Farewell farewell, const std::string&) override {
    line.error.set(text);
    farewells.push_back(farewell);
  }

  // The error of a wait to which nothing ever comes.
  std::string error() {
    Watchdog dog(line, *this);
    auto text = error_text<c10::DistBackendError>([&] {
      dog.run([&] {
        while (true) dog.look();
      });
    });
    EXPECT_EQ(farewells, std::vector{Farewell::failed});
    EXPECT_EQ(error_text<c10::DistBackendError>([&] { line.error.check(); }), "this group has failed before: " + text);
    return text;
  }
};

TEST(Watchdog, NamesWhoIsLateAndPostsIt) {
  Wait wait;
  auto text = wait.error();
  EXPECT_EQ(text,
            "rank 1 did not take part within 0.2 s. Stuck, gone, or running other code: look at the output. "
            "INTARSIA_TIMEOUT sets the wait in seconds.");
  EXPECT_EQ(wait.line.failures().why(0), text);
}

TEST(Watchdog, NamesWhoIsGoneAndHowThatIsKnown) {
  Wait wait;
  wait.lost = LostMember{1, "its process ended", false, true};
  EXPECT_EQ(wait.error(), "rank 1 is gone (its process ended). See why it ended.");
  EXPECT_EQ(wait.line.failures().gone(), 1);
}

TEST(Watchdog, NamesTheFirstWhoWasReportedGone) {
  Wait wait;
  wait.line.failures().first_gone(2);
  wait.lost = LostMember{1, "its process ended", false, true};
  EXPECT_EQ(wait.error(), "rank 2 is gone (and then rank 1: its process ended). See why it ended.");
}

TEST(Watchdog, SaysWhatTheOneWhoLeftSaid) {
  Wait wait;
  wait.line.failures().tell_why(1, "rank 2 did not take part");
  wait.lost = LostMember{1, "it closed the connection"};
  EXPECT_EQ(wait.error(), "rank 2 did not take part");
}

TEST(Watchdog, NamesWhoWasInterrupted) {
  Wait wait;
  wait.interrupted = 2;
  EXPECT_EQ(wait.error(), "rank 2 was interrupted while it waited. Start the job again.");
}

TEST(Watchdog, ShowsBothCollectivesWhenAMessageOfAnotherComes) {
  Wait wait, other;
  other.call.kind = Collective::broadcast;
  other.call.number = 0;
  WatchedLine line({0, 1, 2}, 1, milliseconds(200), "test", wait.store, "key");
  line.number(other.call);
  line.compare(other.call, {});
  Watchdog dog(wait.line, wait);
  auto text = error_text<c10::DistBackendError>([&] { dog.run([&] { throw UnexpectedMessage{1, std::nullopt}; }); });
  EXPECT_EQ(
      text,
      "collective 0 on axis \"tp\": rank 0 is in all_gather of 4 floats for a direct call, rank 1 in broadcast of 4 "
      "floats for a direct call. All ranks of a line must run the same collectives in the same order.");
}

TEST(Watchdog, LetsTheOthersKnowWhyAWaitEndsWithAnyError) {
  Wait wait;
  Watchdog dog(wait.line, wait);
  EXPECT_THROW(dog.run([] { throw std::runtime_error("no memory"); }), std::runtime_error);
  EXPECT_EQ(wait.farewells, std::vector{Farewell::failed});
}

}  // namespace
}  // namespace intarsia::watch_watchdog_test
