#pragma once
// How the members of a line hear that one of them was interrupted, also those who do not wait for that one.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace intarsia {

// A note in the store of the job. A store that does not answer is no news: its server may have ended well before us.
class Alarm {
 public:
  // `store` is a connection of its own: a shared one may be held by a thread that waits in it.
  Alarm(c10::intrusive_ptr<c10d::Store> store, std::string key);
  ~Alarm();
  void raise(int64_t rank);
  std::optional<int64_t> raised();  // the rank that did

 private:
  c10::intrusive_ptr<c10d::Store> store_;  // null: there is none, or it does not answer
  std::string key_;
  std::mutex mutex_;
};

}  // namespace intarsia
