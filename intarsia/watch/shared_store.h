#pragma once
// One connection to a store in which several threads may wait.

#include <chrono>
#include <string>
#include <vector>

#include "intarsia/watch/forwarding_store.h"

namespace intarsia {

// A wait in a c10d store occupies its connection until the answer comes. Here a wait polls, so a connection can be
// shared: making one for every group would take time, and a lookup of the server's name each.
class SharedStore final : public ForwardingStore {
 public:
  explicit SharedStore(c10::intrusive_ptr<c10d::Store> store);  // no other thread waits in it

  c10::intrusive_ptr<c10d::Store> clone() override;
  std::vector<uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;

 private:
  void forward(const Call& call) const override { call(*store_); }
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace intarsia
