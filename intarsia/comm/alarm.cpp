#include "intarsia/comm/alarm.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

Alarm::Alarm(c10::intrusive_ptr<c10d::Store> store, std::string key) : store_(std::move(store)), key_(std::move(key)) {}

Alarm::~Alarm() = default;

void Alarm::raise(int64_t rank) {
  std::lock_guard lock(mutex_);
  try {
    if (store_) store_->set(key_, std::to_string(rank));
  } catch (const std::exception&) {
    store_.reset();
  }
}

std::optional<int64_t> Alarm::raised() {
  std::lock_guard lock(mutex_);
  try {
    if (store_ && store_->check({key_})) return std::stoll(store_->get_to_str(key_));
  } catch (const std::exception&) {
    store_.reset();
  }
  return std::nullopt;
}

std::optional<int64_t> Alarm::gone() {
  std::lock_guard lock(mutex_);
  try {
    if (store_ && store_->check({"gone"})) return std::stoll(store_->get_to_str("gone"));
  } catch (const std::exception&) {
    store_.reset();
  }
  return std::nullopt;
}

bool Alarm::answers() const {
  std::lock_guard lock(mutex_);
  return store_ != nullptr;
}

int64_t Alarm::first_gone(int64_t rank) {
  std::lock_guard lock(mutex_);
  try {
    if (store_) return std::stoll(store_->compareSet("gone", std::string(), std::to_string(rank)));
  } catch (const std::exception&) {
    store_.reset();
  }
  return rank;
}

}  // namespace intarsia
