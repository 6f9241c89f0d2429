#pragma once
// Whether the ranks of an asynchronous save still live, and what the first of them has to tell, by files in the folder of the save.
//
// Note [Who lives]
// Each rank holds a lock on a file of its own while it takes part. The kernel releases it when the process ends, however it ends;
// so whoever waits for a rank sees that it is gone, and need not wait for a time-out. On a file system without locks nobody ever
// seems to be gone, and the time-out is what is left.

#include <optional>
#include <string>

#include "intarsia/checkpoint/files.h"

namespace intarsia::checkpoint {

// The file of one rank in the folder of a save.
class Presence {
 public:
  static Presence of_mine(const std::string& folder, int64_t rank);     // makes it, and holds its lock
  static Presence of_another(const std::string& folder, int64_t rank);  // which is there

  // Of another rank: whether its process has ended, or has left the save.
  bool is_gone() const;

  // A text for whoever watches this rank, and that text once it is there. It is seen also after the folder has got another name.
  void tell(const std::string& text) const;
  std::optional<std::string> told() const;

  static std::string file_name(int64_t rank);

 private:
  explicit Presence(OpenFile file) : file_(std::move(file)) {}
  OpenFile file_;
};

}  // namespace intarsia::checkpoint
