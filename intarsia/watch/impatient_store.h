#pragma once
// A store whose calls end with an error after a time-out, instead of waiting for an answer that may never come.

#include <chrono>
#include <memory>

#include "intarsia/watch/forwarding_store.h"

namespace intarsia {

// If the link to a store's server is cut, c10d waits for its answer for a quarter of an hour or forever. Here a call
// without an answer in time raises an error, and from then on every call does, at once.
class ImpatientStore final : public ForwardingStore {
 public:
  // Our thread waits in `store`; no other thread may.
  ImpatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience);
  ~ImpatientStore() override;

  c10::intrusive_ptr<c10d::Store> clone() override;

 private:
  struct Asker;
  void forward(const Call& call) const override;

  std::shared_ptr<Asker> asker_;  // shared with its thread, which may hang and is never joined
  std::chrono::milliseconds patience_;
};

}  // namespace intarsia
