#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "intarsia/comm/c10d/making.h"
#include "tests/support/error_text.h"

namespace intarsia::comm_making_test {
namespace {

using std::chrono::seconds;

// What rank 0 says about gloo's failure, if another process, as rank 1, goes as far as `play` after both have met.
template <class Play>
std::string error_of_rank_0(Play play, seconds timeout = seconds(30)) {
  char path[] = "/tmp/making_test_XXXXXX";
  close(mkstemp(path));
  const std::vector<int64_t> ranks{0, 1};
  auto child = fork();
  if (child == 0) {
    c10d::FileStore store(path, 2);
    Making making(store, 1, ranks, seconds(30));
    play(making);
    _exit(0);
  }
  c10d::FileStore store(path, 2);
  Making making(store, 0, ranks, timeout);
  auto text = error_text<c10::DistBackendError>([&] { making.fail(std::runtime_error("gloo gave up"), nullptr); });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  unlink(path);
  return text;
}

TEST(Making, NamesARankThatEndedWhileTheOthersConnected) {
  EXPECT_EQ(error_of_rank_0([](Making&) {}),
            "[make_group] rank 1 is gone (while the ranks connected: gloo gave up). See why it ended.");
}

TEST(Making, NamesARankThatDoesNotGetThrough) {
  auto text = error_of_rank_0([](Making&) { sleep(100); }, seconds(4));
  EXPECT_EQ(text.substr(0, text.find(" s (")), "[make_group] rank 1 did not take part within 4");
}

TEST(Making, NamesNobodyIfAllHaveGotThrough) {
  auto text = error_of_rank_0([](Making& making) { making.done(), sleep(100); });
  EXPECT_EQ(text, "[make_group] the ranks [0, 1] could not connect: gloo gave up.");
}

}  // namespace
}  // namespace intarsia::comm_making_test
