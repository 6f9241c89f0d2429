#include "intarsia/data_parallel/collective_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "intarsia/comm/agreement.h"

namespace intarsia {
namespace {

constexpr int64_t kParts = 1 << 20;  // a position is the number of a module times this, plus that of a part

}  // namespace

// If nothing is sent between processes there is no order to keep, and threads may each have a separate simulation.
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

int64_t CollectiveOrder::open(std::string name, PartText part_text, int64_t others) {
  modules_.push_back({++last_, std::move(name), part_text});
  shared_ = others > 0;
  return last_;
}

void CollectiveOrder::close(int64_t module) {
  std::erase_if(modules_, [module](auto& entry) { return entry.number == module; });
}

void CollectiveOrder::rename(int64_t module, const std::string& name) {
  for (auto& entry : modules_) {
    if (entry.number == module) entry.name = name;
  }
}

int64_t CollectiveOrder::module_count() const { return static_cast<int64_t>(modules_.size()); }

const CollectiveOrder::Module* CollectiveOrder::find(int64_t number) const {
  auto found = std::find_if(modules_.begin(), modules_.end(), [&](auto& entry) { return entry.number == number; });
  return found == modules_.end() ? nullptr : &*found;
}

// With its number if several have one name.
std::string CollectiveOrder::name_of(int64_t position) const {
  if (position == kNoModule * kParts + kFailed) return "an error";
  if (position == kNoModule * kParts + kEnd) return "the end of its backward pass";
  auto number = "number " + std::to_string(position / kParts);
  auto* module = find(position / kParts);
  if (!module) return "module " + number;
  auto same = std::count_if(modules_.begin(), modules_.end(), [&](auto& entry) { return entry.name == module->name; });
  return same > 1 ? module->name + " (" + number + ")" : module->name;
}

// Raises an error if all ranks are at one module that is registered here, but do different things with it.
void CollectiveOrder::check_parts(const std::vector<int64_t>& positions) const {
  auto number = positions[0] / kParts;
  auto* module = find(number);
  if (!module || std::any_of(positions.begin(), positions.end(), [&](auto at) { return at / kParts != number; }))
    return;
  std::string text;
  bool alike = true;
  auto& ranks = axis_.line().ranks[0];
  for (size_t j = 0; j < positions.size(); ++j) {
    auto does = module->part_text(positions[j] % kParts);
    alike = alike && does == module->part_text(positions[0] % kParts);
    text += c10::str(j ? ", rank " : "rank ", ranks[j], " ", does);
  }
  TORCH_CHECK(!alike, "[data_parallel] the ranks are all at ", name_of(positions[0]),
              ", where not the same parameters require grad ",
              "on all of them. All ranks must freeze the same parameters.");
  TORCH_CHECK(false, "[data_parallel] the ranks are all at ", name_of(positions[0]),
              ", but do different things with it: ", text,
              ". All ranks must use the same modules and parameters in the same order.");
}

void CollectiveOrder::agree_if_shared(int64_t module, int64_t part) {
  if (shared_) agree(module, part);
}

void CollectiveOrder::agree(int64_t module, int64_t part) {
  if (axis_.size() == 1 || axis_.slot_count() != 1) return;
  auto mine = module * kParts + part;
  auto positions = exchange_numbers(axis_, mine);
  if (std::all_of(positions.begin(), positions.end(), [mine](auto at) { return at == mine; })) return;
  check_parts(positions);
  std::string text;
  auto& ranks = axis_.line().ranks[0];
  for (size_t j = 0; j < positions.size(); ++j) {
    text += c10::str(j ? ", " : "", "rank ", ranks[j], " at ", name_of(positions[j]));
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
