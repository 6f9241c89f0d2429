#include "intarsia/watch/ticks.h"

#include <cmath>
#include <thread>

namespace intarsia {
namespace {

struct Reading {
  uint64_t ticks = ticks_now();
  int64_t ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
};

const Reading kFirst;  // when the library was loaded

}  // namespace

TickScale::TickScale() {
  using std::chrono::milliseconds;
  if (std::chrono::steady_clock::now() - kFirst.steady < milliseconds(20))
    std::this_thread::sleep_for(milliseconds(20));
  Reading now;
  ticks_ = now.ticks;
  ns_ = now.ns;
  auto passed = std::chrono::duration<double, std::nano>(now.steady - kFirst.steady).count();
  ns_per_tick_ = passed / static_cast<double>(now.ticks - kFirst.ticks);
}

int64_t TickScale::ns(uint64_t ticks) const {
  return ns_ + std::llround(static_cast<double>(static_cast<int64_t>(ticks - ticks_)) * ns_per_tick_);
}

}  // namespace intarsia
