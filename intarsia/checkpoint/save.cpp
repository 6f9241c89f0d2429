#include "intarsia/checkpoint/save.h"

#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/saving.h"
#include "intarsia/comm/trace.h"

namespace intarsia::checkpoint {

struct PendingSave::State {
  std::thread thread;
  std::mutex mutex;  // guards the thread's end and the error
  std::atomic<bool> done{false};
  std::exception_ptr error;

  void wait() {
    std::lock_guard lock(mutex);
    if (thread.joinable()) thread.join();
    if (auto told = std::exchange(error, nullptr)) std::rethrow_exception(told);
  }
  ~State() {
    if (thread.joinable()) thread.join();
    if (!error) return;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& unheard) {  // no one is left to report it to otherwise
      std::fprintf(stderr, "%s\n", text_of_error(unheard).c_str());
    }
  }
};

namespace {

// The save of this thread that is in progress, or was the last. The thread waits for it when it ends.
std::shared_ptr<PendingSave::State>& under_way() {
  static thread_local std::shared_ptr<PendingSave::State> state;
  return state;
}

}  // namespace

void wait_for_saves() {
  if (auto last = std::exchange(under_way(), nullptr)) last->wait();
}

void save(const std::string& path, const Items& items, const SaveOptions& options) {
  CauseScope cause("checkpoint::save", false);
  wait_for_saves();
  Saving saving(current_world("checkpoint::save"), path, items, options);
  saving.write();
  saving.finish_together();
}

PendingSave save_async(const std::string& path, const Items& items, const SaveOptions& options) {
  CauseScope cause("checkpoint::save_async", false);
  wait_for_saves();
  auto saving = std::make_shared<Saving>(current_world("checkpoint::save_async"), path, items, options);
  saving->take_part();
  saving->copy_to_memory();
  auto state = std::make_shared<PendingSave::State>();
  state->thread = std::thread([saving, state = state.get()]() mutable {
    try {
      saving->look_for_others();
      saving->write();
      saving->finish_alone();
    } catch (...) {
      state->error = std::current_exception();
    }
    saving.reset();
    state->done = true;
  });
  under_way() = state;
  return PendingSave(state);
}

bool PendingSave::done() const { return state_->done; }
void PendingSave::wait() { state_->wait(); }

}  // namespace intarsia::checkpoint
