#pragma once
// The error of a group that has failed: it fails at once from then on.

#include <mutex>
#include <string>

namespace intarsia {

// Thread-safe.
class StickyError {
 public:
  bool exists() const;
  void check() const;  // raises the error if there is one
  void set(const std::string& text);
  [[noreturn]] void fail(const std::string& text);

 private:
  mutable std::mutex mutex_;
  std::string text_;  // empty: none
};

}  // namespace intarsia
