#pragma once
// Liveness of the ranks of an asynchronous save, and the result of its first rank, by locked files in the folder of the
// save.
//
// Note [Who lives]
// Each rank holds a lock on its own file while it takes part. The kernel releases the lock when the process ends,
// however it ends, so ranks that wait for it notice at once instead of waiting for a time-out. On a file system without
// locks, only the time-out remains.

#include <optional>
#include <string>

#include "intarsia/checkpoint/files.h"

namespace intarsia::checkpoint {

// The file of one rank in the folder of a save.
class Presence {
 public:
  static Presence of_mine(const std::string& folder, int64_t rank);     // creates it, and holds its lock
  static Presence of_another(const std::string& folder, int64_t rank);  // an existing one

  // For another rank: whether its process has ended, or has left the save.
  bool is_gone() const;

  // Writes a text for the ranks that watch this one, and reads that text once it is complete. It stays readable after
  // the folder was renamed.
  void tell(const std::string& text) const;
  std::optional<std::string> told() const;

  static std::string file_name(int64_t rank);

 private:
  explicit Presence(OpenFile file) : file_(std::move(file)) {}
  OpenFile file_;
};

}  // namespace intarsia::checkpoint
