#pragma once
// Counts the bytes that meta tensors would take if they had data.

#include <cstdint>
#include <memory>

namespace intarsia {

// While it lives, it counts what this thread makes on the meta device, as long as that lives. One at a time.
class NoDataMemory {
 public:
  NoDataMemory();
  ~NoDataMemory();
  NoDataMemory(const NoDataMemory&) = delete;
  NoDataMemory& operator=(const NoDataMemory&) = delete;

  int64_t now() const;
  int64_t peak() const;  // since the start, or since it was last forgotten
  void forget_peak();

  struct Counter;

 private:
  std::shared_ptr<Counter> counter_;
};

}  // namespace intarsia
