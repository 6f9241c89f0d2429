#include "intarsia/watch/failure_board.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

FailureBoard::FailureBoard(c10::intrusive_ptr<c10d::Store> store, std::string key)
    : store_(std::move(store)), key_(std::move(key)) {}

FailureBoard::~FailureBoard() = default;

template <class Answer, class Ask>
Answer FailureBoard::ask(Answer otherwise, Ask question) {
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

void FailureBoard::raise(int64_t rank) {
  ask(false, [&](c10d::Store& store) { return store.set(key_, std::to_string(rank)), true; });
}

std::optional<int64_t> FailureBoard::raised() {
  return ask(std::optional<int64_t>(), [&](c10d::Store& store) { return number_at(store, key_); });
}

std::optional<int64_t> FailureBoard::gone() {
  return ask(std::optional<int64_t>(), [&](c10d::Store& store) { return number_at(store, "gone"); });
}

int64_t FailureBoard::first_gone(int64_t rank) {
  return ask(rank, [&](c10d::Store& store) -> int64_t {
    return std::stoll(store.compareSet("gone", std::string(), std::to_string(rank)));
  });
}

void FailureBoard::tell_why(int64_t rank, const std::string& text) {
  ask(false, [&](c10d::Store& store) { return store.set(why_key(rank), text), true; });
}

std::string FailureBoard::why(int64_t rank) {
  return ask(std::string(), [&](c10d::Store& store) {
    return store.check({why_key(rank)}) ? store.get_to_str(why_key(rank)) : std::string();
  });
}

bool FailureBoard::answers() const {
  std::lock_guard lock(mutex_);
  return store_ != nullptr;
}

}  // namespace intarsia
