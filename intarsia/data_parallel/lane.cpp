#include "intarsia/data_parallel/lane.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

constexpr int64_t kParts = 1 << 20;  // a word is a user's number and, below it, that of a part

}  // namespace

// Where nothing travels between processes there is no order to keep, and threads may each have a simulation of their own.
Lane& Lane::of(const Axis& axis) {
  using Key = std::pair<const Axis*, std::thread::id>;  // an Axis lives as long as the process
  static auto* mutex = new std::mutex;
  static auto* lanes = new std::map<Key, std::unique_ptr<Lane>>;
  bool travels = axis.size() > 1 && axis.slot_count() == 1;
  std::lock_guard lock(*mutex);
  auto& lane = (*lanes)[{&axis, travels ? std::thread::id() : std::this_thread::get_id()}];
  if (!lane) lane = std::make_unique<Lane>(axis);
  return *lane;
}

int64_t Lane::open(std::string name, int64_t others) {
  users_.emplace_back(++last_, std::move(name));
  shared_ = others > 0;
  return last_;
}

void Lane::close(int64_t user) {
  std::erase_if(users_, [user](auto& entry) { return entry.first == user; });
}

void Lane::rename(int64_t user, const std::string& name) {
  for (auto& entry : users_) {
    if (entry.first == user) entry.second = name;
  }
}

int64_t Lane::user_count() const { return static_cast<int64_t>(users_.size()); }

std::string Lane::name_of(int64_t word) const {
  if (word == kNobody * kParts + kFailed) return "an error";
  if (word == kNobody * kParts + kEnd) return "the end of its backward pass";
  for (auto& [user, name] : users_) {
    if (user == word / kParts) return name;
  }
  return "module number " + std::to_string(word / kParts);
}

void Lane::check(int64_t user, int64_t part) {
  if (shared_) check_always(user, part);
}

void Lane::check_always(int64_t user, int64_t part) {
  if (axis_.size() == 1 || axis_.slot_count() != 1) return;
  auto mine = at::scalar_tensor(user * kParts + part, at::kLong).view(1), all = at::empty({axis_.size()}, at::kLong);
  axis_.all_gather({mine}, {all}, {std::vector<int64_t>(axis_.size(), 1)});
  if (all.eq(mine).all().item<bool>()) return;
  std::string text;
  auto& ranks = axis_.line().ranks[0];
  for (int64_t j = 0; j < axis_.size(); ++j) {
    auto word = all[j].item<int64_t>();
    text += c10::str(j ? ", " : "", "rank ", ranks[j], " at ", name_of(word));
  }
  TORCH_CHECK(false, "[data_parallel] the ranks are at different modules: ", text,
              ". All ranks must use the same modules and parameters in the same order.");
}

void Lane::begin(const std::shared_ptr<Reduction>& reduction) {
  reduction->begin();
  advance_all();
  begun_.push_back(reduction);
}

void Lane::advance_all() {
  auto begun = std::move(begun_);
  begun_.clear();
  for (auto& reduction : begun) reduction->advance();
}

}  // namespace intarsia
