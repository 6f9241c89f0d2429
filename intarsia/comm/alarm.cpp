#include "intarsia/comm/alarm.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

Alarm::Alarm(c10::intrusive_ptr<c10d::Store> store, std::string key) : store_(std::move(store)), key_(std::move(key)) {}

Alarm::~Alarm() = default;

template <class Answer, class Ask>
Answer Alarm::ask(Answer otherwise, Ask question) {
  std::lock_guard lock(mutex_);
  try {
    if (store_) return question(*store_);
  } catch (const std::exception&) {
    store_.reset();
  }
  return otherwise;
}

namespace {

std::optional<int64_t> number_at(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? std::optional<int64_t>(std::stoll(store.get_to_str(key))) : std::nullopt;
}

}  // namespace

void Alarm::raise(int64_t rank) {
  ask(false, [&](c10d::Store& store) { return store.set(key_, std::to_string(rank)), true; });
}

std::optional<int64_t> Alarm::raised() {
  return ask(std::optional<int64_t>(), [&](c10d::Store& store) { return number_at(store, key_); });
}

std::optional<int64_t> Alarm::gone() {
  return ask(std::optional<int64_t>(), [&](c10d::Store& store) { return number_at(store, "gone"); });
}

int64_t Alarm::first_gone(int64_t rank) {
  return ask(rank, [&](c10d::Store& store) -> int64_t { return std::stoll(store.compareSet("gone", std::string(), std::to_string(rank))); });
}

void Alarm::tell_why(int64_t rank, const std::string& text) {
  ask(false, [&](c10d::Store& store) { return store.set(why_key(rank), text), true; });
}

std::string Alarm::why(int64_t rank) {
  return ask(std::string(), [&](c10d::Store& store) { return store.check({why_key(rank)}) ? store.get_to_str(why_key(rank)) : std::string(); });
}

bool Alarm::answers() const {
  std::lock_guard lock(mutex_);
  return store_ != nullptr;
}

}  // namespace intarsia
