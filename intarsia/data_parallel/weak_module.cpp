#include "intarsia/data_parallel/weak_module.h"

#include <cstddef>
#include <map>
#include <mutex>

#include <torch/nn/module.h>

namespace intarsia {
namespace {

using Gone = std::shared_ptr<std::atomic<bool>>;

template <class T>
struct TellingAllocator {
  using value_type = T;
  Gone gone;

  explicit TellingAllocator(Gone gone) : gone(std::move(gone)) {}
  template <class U>
  TellingAllocator(const TellingAllocator<U>& other) : gone(other.gone) {}
  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, size_t count) {
    *gone = true;
    std::allocator<T>().deallocate(memory, count);
  }
  template <class U>
  bool operator==(const TellingAllocator<U>& other) const {
    return gone == other.gone;
  }
};

// Of modules that nobody owns, by address: a second block would free the first.
struct Lives {
  std::mutex mutex;
  std::map<const torch::nn::Module*, Gone> all;
};
Lives& lives() {
  static auto* instance = new Lives;
  return *instance;
}

Gone life_of(const torch::nn::Module& module) {
  std::lock_guard lock(lives().mutex);
  std::erase_if(lives().all, [](auto& entry) { return entry.second->load(); });
  auto& gone = lives().all[&module];
  if (gone) return gone;
  gone = std::make_shared<std::atomic<bool>>(false);
  auto* address = const_cast<torch::nn::Module*>(&module);
  std::shared_ptr<torch::nn::Module>(address, [](auto*) {}, TellingAllocator<torch::nn::Module>(gone));
  return gone;
}

}  // namespace

WeakModule::WeakModule(const torch::nn::Module& module) : owned_(module.weak_from_this()) {
  if (!owned_.expired()) return;
  owned_.reset();  // it may refer to the block whose end is waited for
  unowned_ = &module;
  gone_ = life_of(module);
}

std::shared_ptr<const torch::nn::Module> WeakModule::lock() const {
  if (!unowned_) return owned_.lock();
  if (*gone_) return nullptr;
  return {std::shared_ptr<const torch::nn::Module>(), unowned_};
}

}  // namespace intarsia
