#include "intarsia/comm/coalesced_events.h"

#include <utility>

namespace intarsia {
namespace {

thread_local CoalescedEventScope* together_ = nullptr;

}  // namespace

CoalescedEventScope::CoalescedEventScope() : outer_(std::exchange(together_, this)) {}

CoalescedEventScope::~CoalescedEventScope() {
  together_ = outer_;
  if (sum_) record(*world_, *sum_);
}

bool CoalescedEventScope::takes(const World& world, const CommEvent& event) {
  if (!together_) return false;
  together_->world_ = &world;
  auto& sum = together_->sum_;
  if (!sum) return sum = event, true;
  sum->sent += event.sent;
  sum->received += event.received;
  sum->seconds = event.start + event.seconds - sum->start;
  return true;
}

}  // namespace intarsia
