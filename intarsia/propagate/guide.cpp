#include "intarsia/propagate/guide.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace intarsia {
namespace {

std::atomic<int64_t> number_{0};  // of the present guide, or 0
thread_local bool unguided_ = false;

std::mutex& guide_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// A call that has begun goes on with the guide that it found.
std::shared_ptr<const Guide>& current_guide() {
  static auto* guide = new std::shared_ptr<const Guide>;
  return *guide;
}

}  // namespace

void set_guide(Guide guide) {
  static int64_t count = 0;
  auto next = guide ? std::make_shared<const Guide>(std::move(guide)) : nullptr;
  std::lock_guard lock(guide_mutex());
  number_.store(next ? ++count : 0, std::memory_order_relaxed);
  current_guide() = std::move(next);
}

UnguidedScope::UnguidedScope() : outer_(unguided_) { unguided_ = true; }
UnguidedScope::~UnguidedScope() { unguided_ = outer_; }

int64_t current_guide_number() { return unguided_ ? 0 : number_.load(std::memory_order_relaxed); }

std::optional<Advice> advice_for(const Question& question) {
  if (!is_guided()) return std::nullopt;
  std::shared_ptr<const Guide> guide;
  {
    std::lock_guard lock(guide_mutex());
    guide = current_guide();
  }
  if (!guide) return std::nullopt;
  UnguidedScope scope;  // it may call ops itself
  return (*guide)(question);
}

}  // namespace intarsia
