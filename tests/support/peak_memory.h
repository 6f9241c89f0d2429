#pragma once
// How much memory a call takes for tensors.

#include <algorithm>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace intarsia {

// LibTorch reports to it what the thread allocates and frees.
class PeakMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    peak_ = std::max(peak_, now_ += size);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0, peak_ = 0;
};

// The most bytes that the thread had at once, above those at the start.
template <class Body>
int64_t peak_of(Body body) {
  auto memory = std::make_shared<PeakMemory>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  body();
  return memory->peak();
}

// The largest block that was asked for while it lives.
class LargestBlock final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    largest_ = std::max(largest_, size);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes() const { return largest_; }

 private:
  int64_t largest_ = 0;
};

template <class Body>
int64_t largest_block_of(Body body) {
  auto memory = std::make_shared<LargestBlock>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  body();
  return memory->bytes();
}

}  // namespace intarsia
