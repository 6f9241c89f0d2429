#pragma once
// Several collectives that the trace shows as one event.

#include <optional>

#include "intarsia/comm/trace.h"

namespace intarsia {

// The collectives of this scope, all of one kind along one axis, are one event with the bytes of all. For one thread.
class CoalescedEventScope {
 public:
  CoalescedEventScope();
  ~CoalescedEventScope();
  CoalescedEventScope(const CoalescedEventScope&) = delete;
  CoalescedEventScope& operator=(const CoalescedEventScope&) = delete;

  // Whether a scope is open that has taken the event.
  static bool takes(const World& world, const CommEvent& event);

 private:
  const World* world_ = nullptr;
  std::optional<CommEvent> sum_;
  CoalescedEventScope* outer_;
};

}  // namespace intarsia
