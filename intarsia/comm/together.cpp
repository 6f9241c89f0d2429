#include "intarsia/comm/together.h"

#include <utility>

namespace intarsia {
namespace {

thread_local TogetherScope* together_ = nullptr;

}  // namespace

TogetherScope::TogetherScope() : outer_(std::exchange(together_, this)) {}

TogetherScope::~TogetherScope() {
  together_ = outer_;
  if (sum_) record(*sum_);
}

bool TogetherScope::takes(const CommEvent& event) {
  if (!together_) return false;
  auto& sum = together_->sum_;
  if (!sum) return sum = event, true;
  sum->sent += event.sent;
  sum->received += event.received;
  sum->seconds = event.start + event.seconds - sum->start;
  return true;
}

}  // namespace intarsia
