#include "intarsia/debug/no_data_memory.h"

#include <algorithm>
#include <mutex>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace intarsia {

struct NoDataMemory::Counter {
  int64_t now = 0, peak = 0;
};

namespace {

using CounterPtr = std::shared_ptr<NoDataMemory::Counter>;

thread_local CounterPtr counting_;

// The context of a storage, in place of memory.
struct Claim {
  CounterPtr counter;
  int64_t bytes;
};

void give_back(void* claim) {
  auto* held = static_cast<Claim*>(claim);
  held->counter->now -= held->bytes;
  delete held;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto device = c10::Device(c10::DeviceType::Meta);
    if (!counting_) return {nullptr, nullptr, nullptr, device};
    auto size = static_cast<int64_t>(bytes);
    counting_->now += size;
    counting_->peak = std::max(counting_->peak, counting_->now);
    return {nullptr, new Claim{counting_, size}, &give_back, device};
  }
  void copy_data(void*, const void*, size_t) const override {}
};

// The allocator stays: without a counter it behaves as LibTorch's.
void count_from_now_on() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetAllocator(c10::DeviceType::Meta, new CountingAllocator); });
}

}  // namespace

NoDataMemory::NoDataMemory() : counter_(std::make_shared<Counter>()) {
  TORCH_CHECK(!counting_, "[explain] a step is being explained on this thread already.");
  count_from_now_on();
  counting_ = counter_;
}

NoDataMemory::~NoDataMemory() { counting_ = nullptr; }

int64_t NoDataMemory::now() const { return counter_->now; }
int64_t NoDataMemory::peak() const { return counter_->peak; }
void NoDataMemory::forget_peak() { counter_->peak = counter_->now; }

}  // namespace intarsia
