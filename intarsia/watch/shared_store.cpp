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

void SharedStore::set(const std::string& key, const std::vector<uint8_t>& value) { store_->set(key, value); }

std::vector<uint8_t> SharedStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& wanted) {
  return store_->compareSet(key, expected, wanted);
}

std::vector<uint8_t> SharedStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

int64_t SharedStore::add(const std::string& key, int64_t value) { return store_->add(key, value); }
bool SharedStore::deleteKey(const std::string& key) { return store_->deleteKey(key); }
bool SharedStore::check(const std::vector<std::string>& keys) { return store_->check(keys); }
int64_t SharedStore::getNumKeys() { return store_->getNumKeys(); }
void SharedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void SharedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  bool there = poll_until(std::chrono::steady_clock::now() + timeout, [&] { return store_->check(keys); });
  TORCH_CHECK_WITH(DistStoreError, there, "waited ", std::chrono::duration<double>(timeout).count(), " s in the store for ", c10::Join(", ", keys));
}

void SharedStore::append(const std::string& key, const std::vector<uint8_t>& value) { store_->append(key, value); }

std::vector<std::vector<uint8_t>> SharedStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return store_->multiGet(keys);
}

void SharedStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  store_->multiSet(keys, values);
}

bool SharedStore::hasExtendedApi() const { return store_->hasExtendedApi(); }

}  // namespace intarsia
