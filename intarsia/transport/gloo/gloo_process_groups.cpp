#include "intarsia/transport/gloo/gloo_process_groups.h"

#include <net/if.h>
#include <sched.h>
#include <signal.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace intarsia {
namespace {

// Note [Gloo's I/O thread]
// The I/O thread only tries to lock a connection; if a caller holds the lock it polls again at once. If the caller was
// preempted inside the lock (usually because that very thread woke up), the I/O thread spins until the scheduler's next
// tick: 4 ms for a collective that takes 0.2 ms, on nearly every call with more ranks than cores. A thread of the class
// SCHED_BATCH never preempts another one when it wakes up, so this does not happen. Threads inherit the class, and
// returning to SCHED_OTHER needs no rights.
class BatchClass {
 public:
  BatchClass() : policy_(sched_getscheduler(0)) { change_to(SCHED_BATCH); }
  ~BatchClass() { change_to(policy_); }
  BatchClass(const BatchClass&) = delete;
  BatchClass& operator=(const BatchClass&) = delete;

 private:
  // Other classes (real time, idle) are the user's choice and stay.
  void change_to(int policy) const {
    sched_param none{};
    if (policy_ == SCHED_OTHER) sched_setscheduler(0, policy, &none);
  }
  int policy_;
};

// Gloo's socket writes raise SIGPIPE if the other end has gone, and that signal's default action ends this process
// silently. Python ignores it; so do we, unless the program has a handler.
void ignore_broken_pipes() {
  struct sigaction now;
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
}

}  // namespace

struct GlooMaker::Device {
  std::shared_ptr<gloo::transport::Device> device;
};

GlooMaker::GlooMaker(std::string interface, std::chrono::milliseconds timeout)
    : device_(std::make_unique<Device>()), timeout_(timeout) {
  using c10d::ProcessGroupGloo;
  ignore_broken_pipes();
  BatchClass batch;
  if (interface.empty()) {
    device_->device = ProcessGroupGloo::createDefaultDevice();
  } else if (if_nametoindex(interface.c_str())) {
    device_->device = ProcessGroupGloo::createDeviceForInterface(interface);
  } else {
    device_->device = ProcessGroupGloo::createDeviceForHostname(interface);
  }
}

GlooMaker::~GlooMaker() = default;

c10::intrusive_ptr<c10d::Backend> GlooMaker::make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int size) const {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
  options->devices.push_back(device_->device);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace intarsia
