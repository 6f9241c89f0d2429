#include "intarsia/watch/impatient_store.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "intarsia/comm/quiet_thread.h"

namespace intarsia {
struct ImpatientStore::Asker {
  struct Job {
    Call question;
    std::exception_ptr error;
    bool over = false;
  };
  c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  bool started = false, stopping = false, dead = false;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || dead || !jobs.empty(); });
      if (stopping || dead) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        job->question(*store);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      job->error = error;
      job->over = true;
      changed.notify_all();
    }
  }
};

ImpatientStore::ImpatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience)
    : asker_(std::make_shared<Asker>()), patience_(patience) {
  asker_->store = std::move(store);
}

ImpatientStore::~ImpatientStore() {
  std::lock_guard lock(asker_->mutex);
  asker_->stopping = true;
  asker_->changed.notify_all();
}

void ImpatientStore::forward(const Call& question) const {
  auto job = std::make_shared<Asker::Job>();
  job->question = question;
  std::unique_lock lock(asker_->mutex);
  auto check = [&] {
    TORCH_CHECK_WITH(DistNetworkError, !asker_->dead, "the store did not answer within ",
                     std::chrono::duration<double>(patience_).count(), " s");
  };
  check();
  if (!std::exchange(asker_->started, true)) quiet_thread([asker = asker_] { asker->serve(); }).detach();
  asker_->jobs.push_back(job);
  asker_->changed.notify_all();
  if (!asker_->changed.wait_for(lock, patience_, [&] { return job->over || asker_->dead; })) asker_->dead = true;
  if (!job->over) check();
  if (job->error) std::rethrow_exception(job->error);
}

c10::intrusive_ptr<c10d::Store> ImpatientStore::clone() {
  auto inner = answer_of([](c10d::Store& store) { return store.clone(); });
  return c10::make_intrusive<ImpatientStore>(std::move(inner), patience_);
}

}  // namespace intarsia
