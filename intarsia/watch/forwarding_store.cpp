#include "intarsia/watch/forwarding_store.h"

namespace intarsia {

using c10d::Store;
using Bytes = std::vector<uint8_t>;

void ForwardingStore::set(const std::string& key, const Bytes& value) {
  forward([key, value](Store& store) { store.set(key, value); });
}

Bytes ForwardingStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) {
  return answer_of([=](Store& store) { return store.compareSet(key, expected, wanted); });
}

Bytes ForwardingStore::get(const std::string& key) {
  return answer_of([key](Store& store) { return store.get(key); });
}

int64_t ForwardingStore::add(const std::string& key, int64_t value) {
  return answer_of([=](Store& store) { return store.add(key, value); });
}

bool ForwardingStore::deleteKey(const std::string& key) {
  return answer_of([key](Store& store) { return store.deleteKey(key); });
}

bool ForwardingStore::check(const std::vector<std::string>& keys) {
  return answer_of([keys](Store& store) { return store.check(keys); });
}

int64_t ForwardingStore::getNumKeys() {
  return answer_of([](Store& store) { return store.getNumKeys(); });
}

void ForwardingStore::wait(const std::vector<std::string>& keys) {
  forward([keys](Store& store) { store.wait(keys); });
}

void ForwardingStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  forward([keys, timeout](Store& store) { store.wait(keys, timeout); });
}

void ForwardingStore::append(const std::string& key, const Bytes& value) {
  forward([key, value](Store& store) { store.append(key, value); });
}

std::vector<Bytes> ForwardingStore::multiGet(const std::vector<std::string>& keys) {
  return answer_of([keys](Store& store) { return store.multiGet(keys); });
}

void ForwardingStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  forward([keys, values](Store& store) { store.multiSet(keys, values); });
}

bool ForwardingStore::hasExtendedApi() const {
  return answer_of([](Store& store) { return store.hasExtendedApi(); });
}

}  // namespace intarsia
