#pragma once
// Counts the bytes that meta tensors would take if they had data.

#include <cstdint>
#include <memory>

namespace intarsia {

// While it lives, it counts the meta tensors that this thread creates, until they are freed. There can be one at a
// time.
class NoDataMemory {
 public:
  NoDataMemory();
  ~NoDataMemory();
  NoDataMemory(const NoDataMemory&) = delete;
  NoDataMemory& operator=(const NoDataMemory&) = delete;

  int64_t now() const;
  int64_t peak() const;  // since the start, or since the last forget_peak()
  void forget_peak();

  struct Counter;

 private:
  std::shared_ptr<Counter> counter_;
};

}  // namespace intarsia
