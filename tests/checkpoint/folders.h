#pragma once
// A folder for the files of a test: the same on all ranks, empty at first, and gone at the end.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <unistd.h>

#include "intarsia/core/world.h"
#include "intarsia/job/init.h"
#include "tests/support/world.h"

namespace intarsia {

class TestFolder {
 public:
  explicit TestFolder(const std::string& name) {
    // Processes of one job have one parent.
    path_ = std::filesystem::temp_directory_path() /
            ("intarsia-test-" + std::to_string(process_world() ? getppid() : getpid()) + "-" + name);
    if (leads()) std::filesystem::remove_all(path_), std::filesystem::create_directories(path_);
    meet();
  }
  ~TestFolder() {
    meet();
    std::error_code ignored;
    if (leads()) std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

  static bool leads() { return !process_world() || process_world()->hosted()[0] == 0; }
  static void meet() {
    if (process_world()) barrier();
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace intarsia
