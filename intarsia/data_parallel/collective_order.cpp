#include "intarsia/data_parallel/collective_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "intarsia/comm/agreement_scope.h"

namespace intarsia {
namespace {

constexpr int64_t kParts = 1 << 20;  // a position is the number of a module times this, plus that of a part

}  // namespace

// Where nothing travels between processes there is no order to keep, and threads may each have a simulation of their
// own.
CollectiveOrder& CollectiveOrder::of(const Axis& axis) {
  using Key = std::pair<const Axis*, std::thread::id>;  // an Axis lives as long as the process
  static auto* mutex = new std::mutex;
  static auto* orders = new std::map<Key, std::unique_ptr<CollectiveOrder>>;
  bool travels = axis.size() > 1 && axis.slot_count() == 1;
  std::lock_guard lock(*mutex);
  auto& order = (*orders)[{&axis, travels ? std::thread::id() : std::this_thread::get_id()}];
  if (!order) order = std::make_unique<CollectiveOrder>(axis);
  return *order;
}

int64_t CollectiveOrder::open(std::string name, int64_t others) {
  modules_.emplace_back(++last_, std::move(name));
  shared_ = others > 0;
  return last_;
}

void CollectiveOrder::close(int64_t module) {
  std::erase_if(modules_, [module](auto& entry) { return entry.first == module; });
}

void CollectiveOrder::rename(int64_t module, const std::string& name) {
  for (auto& entry : modules_) {
    if (entry.first == module) entry.second = name;
  }
}

int64_t CollectiveOrder::module_count() const { return static_cast<int64_t>(modules_.size()); }

std::string CollectiveOrder::name_of(int64_t position) const {
  if (position == kNoModule * kParts + kFailed) return "an error";
  if (position == kNoModule * kParts + kEnd) return "the end of its backward pass";
  for (auto& [module, name] : modules_) {
    if (module == position / kParts) return name;
  }
  return "module number " + std::to_string(position / kParts);
}

void CollectiveOrder::agree_if_shared(int64_t module, int64_t part) {
  if (shared_) agree(module, part);
}

void CollectiveOrder::agree(int64_t module, int64_t part) {
  if (axis_.size() == 1 || axis_.slot_count() != 1) return;
  auto mine = at::scalar_tensor(module * kParts + part, at::kLong).view(1), all = at::empty({axis_.size()}, at::kLong);
  {
    AgreementScope agreement;
    axis_.all_gather({mine}, {all}, {std::vector<int64_t>(axis_.size(), 1)});
  }
  if (all.eq(mine).all().item<bool>()) return;
  std::string text;
  auto& ranks = axis_.line().ranks[0];
  for (int64_t j = 0; j < axis_.size(); ++j) {
    auto position = all[j].item<int64_t>();
    text += c10::str(j ? ", " : "", "rank ", ranks[j], " at ", name_of(position));
  }
  TORCH_CHECK(false, "[data_parallel] the ranks are at different modules: ", text,
              ". All ranks must use the same modules and parameters in the same order.");
}

void CollectiveOrder::begin(const std::shared_ptr<Reduction>& reduction) {
  reduction->begin();
  advance_all();
  begun_.push_back(reduction);
}

void CollectiveOrder::advance_all() {
  auto begun = std::move(begun_);
  begun_.clear();
  for (auto& reduction : begun) reduction->advance();
}

}  // namespace intarsia
