#pragma once
// Where ranks post that one of them was interrupted or is gone, so that all hear of it, also those who do not wait for
// that one.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace intarsia {

// Entries in the store of the job. A store that does not answer is no news: its server may have ended well before us.
class FailureBoard {
 public:
  // Nobody waits in `store`.
  FailureBoard(c10::intrusive_ptr<c10d::Store> store, std::string key);
  ~FailureBoard();
  void raise(int64_t rank);
  std::optional<int64_t> raised();  // the rank that did

  // `rank` is gone. Those who wait for it end with an error, and to others they look gone, too: returns the first that
  // was reported.
  int64_t first_gone(int64_t rank);
  std::optional<int64_t> gone();  // that one, if there is
  // Why this rank gives up, for those to whom it looks gone then; empty: it did not say.
  void tell_why(int64_t rank, const std::string& text);
  std::string why(int64_t rank);
  bool answers() const;  // whether the store did, as far as we have asked

 private:
  template <class Answer, class Ask>
  Answer ask(Answer otherwise, Ask question);
  std::string why_key(int64_t rank) const { return key_ + "/why/" + std::to_string(rank); }
  c10::intrusive_ptr<c10d::Store> store_;  // null: there is none, or it does not answer
  std::string key_;
  mutable std::mutex mutex_;
};

}  // namespace intarsia
