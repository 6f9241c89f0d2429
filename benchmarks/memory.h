#pragma once
// How much memory a process takes: what the system counts, and what LibTorch allocates for tensors.

#include <malloc.h>

#include <fstream>
#include <memory>
#include <string>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace bench {

// The most that it had resident, above what it had when this was made.
class PeakResident {
 public:
  PeakResident() {
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
    start_ = kilobytes("VmRSS:");
  }
  double mib() const { return (kilobytes("VmHWM:") - start_) / 1024; }

 private:
  static double kilobytes(const std::string& wanted) {
    std::ifstream status("/proc/self/status");
    for (std::string name; status >> name;) {
      double value;
      if (name == wanted && status >> value) return value;
    }
    return 0;
  }
  double start_;
};

// The most bytes of tensors that the thread had at once, above those when this was made.
class PeakTensors {
 public:
  double mib() const { return static_cast<double>(counter_->peak) / (1 << 20); }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      peak = std::max(peak, now += size);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace bench
