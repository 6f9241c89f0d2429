#pragma once
// The failure board: ranks post that one of them was interrupted or is gone, so that all ranks learn of it, including
// those that do not wait for it.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace intarsia {

// Entries in the job's store. A store that does not answer means nothing: its server may have ended normally before us.
class FailureBoard {
 public:
  // `store` is never used for waits.
  FailureBoard(c10::intrusive_ptr<c10d::Store> store, std::string key);
  ~FailureBoard();
  void raise(int64_t rank);
  std::optional<int64_t> raised();  // the rank that raised it

  // Reports that `rank` is gone. Ranks that wait for it end with an error, and then seem gone to others as well: so
  // this returns the first that was reported.
  int64_t first_gone(int64_t rank);
  std::optional<int64_t> gone();  // that rank, if any
  // Why this rank gives up, for ranks to which it then seems gone; empty: it did not say.
  void tell_why(int64_t rank, const std::string& text);
  std::string why(int64_t rank);
  bool answers() const;  // whether the store did when it was last called

 private:
  template <class Answer, class Ask>
  Answer ask(Answer otherwise, Ask question);
  std::string why_key(int64_t rank) const { return key_ + "/why/" + std::to_string(rank); }
  c10::intrusive_ptr<c10d::Store> store_;  // null: there is none, or it does not answer
  std::string key_;
  mutable std::mutex mutex_;
};

}  // namespace intarsia
