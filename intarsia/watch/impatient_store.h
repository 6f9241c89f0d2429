#pragma once
// A store that does not make its callers wait for an answer that may never come.

#include <chrono>
#include <memory>

#include "intarsia/watch/forwarding_store.h"

namespace intarsia {

// Where the link to the server of a store is cut, c10d waits for its answer for a quarter of an hour or for ever. Here
// a call that is not answered in time is an error, and from then on every call is, at once.
class ImpatientStore final : public ForwardingStore {
 public:
  // A thread of ours waits in `store`; nobody else may.
  ImpatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience);
  ~ImpatientStore() override;

  c10::intrusive_ptr<c10d::Store> clone() override;

 private:
  struct Asker;
  void forward(const Call& call) const override;

  std::shared_ptr<Asker> asker_;  // shared with its thread, which may hang: nobody joins it
  std::chrono::milliseconds patience_;
};

}  // namespace intarsia
