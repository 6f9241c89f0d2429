#include "intarsia/watch/shared_store.h"

#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "intarsia/watch/waiting.h"

namespace intarsia {

SharedStore::SharedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> SharedStore::clone() {
  auto copy = c10::make_intrusive<SharedStore>(store_);
  copy->setTimeout(timeout_);
  return copy;
}

std::vector<uint8_t> SharedStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

void SharedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void SharedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  bool there = poll_until(std::chrono::steady_clock::now() + timeout, [&] { return store_->check(keys); });
  TORCH_CHECK_WITH(DistStoreError, there, "waited ", std::chrono::duration<double>(timeout).count(),
                   " s in the store for ", c10::Join(", ", keys));
}

std::vector<std::vector<uint8_t>> SharedStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return store_->multiGet(keys);
}

}  // namespace intarsia
