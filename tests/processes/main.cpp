// Runs tests as one rank of a real job: intarsia run -n 4 intarsia_process_tests [--gtest_filter=...]
// With --play NAME it plays one scene of plays.h instead, for the tests of the launcher.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include <ATen/Context.h>

#include "intarsia/job/init.h"
#include "tests/processes/plays.h"
#include "tests/processes/socket_transport/socket_transport.h"

namespace {

// Rank 0 speaks for all; the others only report what fails.
class OnlyFailures : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("%s:%d: in %s\n%s\n", result.file_name() ? result.file_name() : "?", result.line_number(),
                name_.c_str(), result.summary());
    std::fflush(stdout);
  }
  std::string name_;
};

// A test may draw plain numbers and take them to be the same on all ranks, whatever the tests before it drew.
class SameSeed : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(1); }
};

}  // namespace

int main(int argc, char** argv) {
  intarsia::add_socket_engine();
  if (argc > 2 && std::string(argv[1]) == "--play") return intarsia::play(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  intarsia::init();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new SameSeed);
  if (intarsia::rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new OnlyFailures);
  }
  int failed = RUN_ALL_TESTS();
  if (!failed) intarsia::barrier();  // a rank that failed has nobody to wait for
  return failed;
}
