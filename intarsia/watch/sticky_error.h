#pragma once
// The error of a line that has failed: it fails at once from then on.

#include <atomic>
#include <mutex>
#include <string>

namespace intarsia {

// Safe to use from several threads; costs next to nothing while there is no error.
class StickyError {
 public:
  bool exists() const { return exists_.load(std::memory_order_acquire); }
  void check() const;    // an error if there is one, for a collective that begins: the line has failed before
  void rethrow() const;  // the same for one that was under way when the line failed
  void set(const std::string& text);

 private:
  std::string text() const;
  mutable std::mutex mutex_;
  std::atomic<bool> exists_{false};
  std::string text_;
};

}  // namespace intarsia
