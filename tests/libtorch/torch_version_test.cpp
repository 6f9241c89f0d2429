#include "intarsia/libtorch/torch_version.h"

#include <gtest/gtest.h>

namespace intarsia::libtorch_torch_version_test {
namespace {

TEST(LibTorchVersion, TheOneThatIsLoadedIsTheOneThatTheTestsWereCompiledFor) {
  EXPECT_EQ(loaded_torch_version(), compiled_torch_version());
  EXPECT_EQ(misfit({2, 13, 0}, {2, 13, 1}), "");
}

TEST(LibTorchVersion, ALibraryForAnotherMinorVersionSaysSo) {
  EXPECT_EQ(
      misfit({2, 13, 0}, {2, 15, 0}),
      "[intarsia] this library was built for LibTorch 2.13.0, but LibTorch 2.15.0 is loaded. Use a LibTorch 2.13, or "
      "build it for this one.");
  EXPECT_NE(misfit({2, 13, 0}, {3, 13, 0}), "");
}

TEST(LibTorchVersion, VersionsThatWereNotTriedAreNamed) {
  for (int minor : {13, 14, 15}) EXPECT_EQ(untried({2, minor, 1}), "");
  EXPECT_EQ(untried({2, 16, 0}),
            "[start] LibTorch 2.16.0 is newer than those that this library was tried with, 2.13 to 2.15.");
  EXPECT_EQ(untried({2, 12, 1}),
            "[start] LibTorch 2.12.1 is older than those that this library was tried with, 2.13 to 2.15.");
}

}  // namespace
}  // namespace intarsia::libtorch_torch_version_test
