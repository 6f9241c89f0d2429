#pragma once
// A thread with all signals blocked: signals are for the program's own threads.

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace intarsia {

template <class Work>
std::thread quiet_thread(Work work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace intarsia
