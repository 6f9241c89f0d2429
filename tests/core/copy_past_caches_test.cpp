#include "intarsia/core/copy_past_caches.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace intarsia {
namespace {

TEST(CopyPastCaches, IsWhatWasThere) {
  std::string source((1 << 20) + 100, '\0');
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 + i / 251);
  for (int64_t bytes : {0, 1, 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 12345, 1 << 20}) {
    for (int64_t from : {0, 3, 64}) {
      for (int64_t to : {0, 1, 16, 31, 63}) {
        std::string copied(bytes + 100, 'x'), expected = copied;
        std::memcpy(expected.data() + to, source.data() + from, bytes);
        copy_past_caches(copied.data() + to, source.data() + from, bytes);
        EXPECT_TRUE(copied == expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace intarsia
