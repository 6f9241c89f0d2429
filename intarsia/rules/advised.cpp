#include "intarsia/rules/advised.h"

#include <atomic>

namespace intarsia {
namespace {

std::atomic<int64_t> number_{0};
thread_local bool unguided_ = false;

}  // namespace

int64_t current_guide_number() { return unguided_ ? 0 : number_.load(std::memory_order_relaxed); }

void set_guide_number(int64_t number) { number_.store(number, std::memory_order_relaxed); }

UnguidedScope::UnguidedScope() : outer_(unguided_) { unguided_ = true; }
UnguidedScope::~UnguidedScope() { unguided_ = outer_; }

}  // namespace intarsia
