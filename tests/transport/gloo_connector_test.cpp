#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "intarsia/transport/gloo/gloo_connector.h"
#include "tests/support/error_text.h"

namespace intarsia::transport_gloo_connector_test {
namespace {

using std::chrono::seconds;

using Backend = GlooConnector::Backend;

FailureBoard no_board(nullptr, "");  // of a job without a store

Backend give_up() { throw std::runtime_error("gloo gave up"); }
Backend get_through() { return nullptr; }
Backend wait_long() {
  sleep(100);
  return nullptr;
}

// What rank 0, to which `connect` happens, says if another process, as rank 1, goes as far as `play` after both have
// met.
template <class Play>
std::string error_of_rank_0(Play play, seconds timeout = seconds(30), bool after_its_end = false,
                            Backend (*connect)() = give_up) {
  char path[] = "/tmp/making_test_XXXXXX";
  close(mkstemp(path));
  const std::vector<int64_t> ranks{0, 1};
  auto child = fork();
  if (child == 0) {
    c10d::FileStore store(path, 2);
    GlooConnector making(store, 1, ranks, seconds(30));
    play(making);
    _exit(0);
  }
  c10d::FileStore store(path, 2);
  GlooConnector making(store, 0, ranks, timeout);
  siginfo_t how;
  if (after_its_end) waitid(P_PID, child, &how, WEXITED | WNOWAIT);
  auto text = error_text<c10::DistBackendError>([&] { making.run(connect, no_board); });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  unlink(path);
  return text;
}

TEST(GlooConnector, NamesARankThatEndedWhileTheOthersConnected) {
  EXPECT_EQ(error_of_rank_0([](GlooConnector&) {}),
            "[make_group] rank 1 is gone (while the ranks connected: gloo gave up). See why it ended.");
}

TEST(GlooConnector, NamesARankThatDoesNotGetThrough) {
  auto text = error_of_rank_0([](GlooConnector&) { sleep(100); }, seconds(4));
  EXPECT_EQ(text.substr(0, text.find(" s (")), "[make_group] rank 1 did not take part within 4");
}

TEST(GlooConnector, NamesNobodyIfAllHaveGotThrough) {
  auto text = error_of_rank_0([](GlooConnector& making) { making.run(get_through, no_board), sleep(100); });
  EXPECT_EQ(text, "[make_group] the ranks [0, 1] could not connect: gloo gave up.");
}

TEST(GlooConnector, NamesARankThatGotThroughAndEndedThen) {
  EXPECT_EQ(error_of_rank_0([](GlooConnector& making) { making.run(get_through, no_board); }, seconds(30), true),
            "[make_group] rank 1 is gone (while the ranks connected: gloo gave up). See why it ended.");
}

TEST(GlooConnector, DoesNotWaitAsLongAsGlooForARankThatHasEnded) {
  EXPECT_EQ(error_of_rank_0([](GlooConnector&) {}, seconds(30), false, wait_long),
            "[make_group] rank 1 is gone (while the ranks connected: not all did). See why it ended.");
}

TEST(GlooConnector, DoesNotWaitAsLongAsGlooForARankThatStandsStill) {
  auto text = error_of_rank_0([](GlooConnector&) { sleep(100); }, seconds(1), false, wait_long);
  EXPECT_EQ(text.substr(0, text.find(" (")), "[make_group] rank 1 did not take part within 1 s");
}

TEST(Processes, ThatAreStoppedAreTold) {
  auto child = fork();
  if (child == 0) raise(SIGSTOP), _exit(0);
  Process process(child);
  waitpid(child, nullptr, WUNTRACED);
  EXPECT_TRUE(process.stopped());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(process.stopped());
  EXPECT_TRUE(process.ended());
}

}  // namespace
}  // namespace intarsia::transport_gloo_connector_test
