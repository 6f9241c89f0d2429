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
    Question question;
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

void ImpatientStore::ask(const Question& question) {
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

// What the call returns outlives us if we do not wait for it.
template <class Answer, class Call>
Answer ImpatientStore::answer_of(Call call) {
  auto answer = std::make_shared<Answer>();
  ask([answer, call](c10d::Store& store) { *answer = call(store); });
  return std::move(*answer);
}

c10::intrusive_ptr<c10d::Store> ImpatientStore::clone() {
  auto inner = answer_of<c10::intrusive_ptr<c10d::Store>>([](c10d::Store& store) { return store.clone(); });
  return c10::make_intrusive<ImpatientStore>(std::move(inner), patience_);
}

void ImpatientStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask([key, value](c10d::Store& store) { store.set(key, value); });
}

std::vector<uint8_t> ImpatientStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                                const std::vector<uint8_t>& wanted) {
  return answer_of<std::vector<uint8_t>>([=](c10d::Store& store) { return store.compareSet(key, expected, wanted); });
}

std::vector<uint8_t> ImpatientStore::get(const std::string& key) {
  return answer_of<std::vector<uint8_t>>([key](c10d::Store& store) { return store.get(key); });
}

int64_t ImpatientStore::add(const std::string& key, int64_t value) {
  return answer_of<int64_t>([=](c10d::Store& store) { return store.add(key, value); });
}

bool ImpatientStore::deleteKey(const std::string& key) {
  return answer_of<bool>([key](c10d::Store& store) { return store.deleteKey(key); });
}

bool ImpatientStore::check(const std::vector<std::string>& keys) {
  return answer_of<bool>([keys](c10d::Store& store) { return store.check(keys); });
}

int64_t ImpatientStore::getNumKeys() {
  return answer_of<int64_t>([](c10d::Store& store) { return store.getNumKeys(); });
}

void ImpatientStore::wait(const std::vector<std::string>& keys) {
  ask([keys](c10d::Store& store) { store.wait(keys); });
}

void ImpatientStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  ask([keys, timeout](c10d::Store& store) { store.wait(keys, timeout); });
}

}  // namespace intarsia
