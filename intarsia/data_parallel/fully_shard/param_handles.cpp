#include "intarsia/data_parallel/fully_shard/param_handles.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/simulation/fan_out/fan_out.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

struct Owned {
  std::weak_ptr<ParamOwner> owner;
  size_t index;
  bool is_of_whole;
};
struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Owned> by_storage;
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

// The memory that identifies the parameter of a tensor: that of the first hosted rank.
const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  if (is_dtensor(tensor)) {
    auto& shards = body_of(tensor).last_known_shards();
    return shards.empty() || !shards[0].has_storage() ? nullptr : shards[0].storage().unsafeGetStorageImpl();
  }
  if (is_per_rank(tensor)) return value_at(tensor, 0).storage().unsafeGetStorageImpl();
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

at::Tensor shards_behind(const at::Tensor& tensor) {
  auto handle = handle_of(tensor);
  if (!handle.owner || handle.kind == HandleKind::shards) return tensor;
  bool is_leaf = handle.kind == HandleKind::leaf;
  if (is_leaf && !handle.owner->is_shown()) return tensor;
  bool all = is_leaf || handle.owner->is_handle_of_whole(handle.index, tensor);
  return all ? handle.owner->shards_of_leaf(handle.index).detach() : tensor;
}

void show_again(const at::Tensor& tensor) {
  auto handle = handle_of(tensor);
  if (handle.owner) handle.owner->show_again();
}

}  // namespace

Handle handle_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kFirstUseKey)) return {};
  auto own = watched(tensor);
  auto leafs = std::dynamic_pointer_cast<ParamOwner>(own.watcher);
  if (leafs) return {HandleKind::leaf, std::move(leafs), own.index};
  Handle found;
  {
    std::lock_guard lock(registry().mutex);
    auto entry = registry().by_storage.find(memory_of(tensor));
    if (entry != registry().by_storage.end()) {
      auto& [owner, index, is_of_whole] = entry->second;
      found = {is_of_whole ? HandleKind::whole : HandleKind::shards, owner.lock(), index};
    }
  }
  // What has a gradient of its own is a distributed tensor like any other, and so is a part.
  if (!found.owner && is_dtensor(tensor) && tensor.requires_grad()) return {};
  if (!found.owner) return {is_dtensor(tensor) ? HandleKind::undecided : HandleKind::computed, nullptr, 0};
  if (found.kind == HandleKind::whole) return found;
  return !tensor.requires_grad() && found.owner->is_handle_of_shards(found.index, tensor) ? found : Handle{};
}

bool meet_at_one_index(c10::ArrayRef<c10::IValue> lists) {
  struct Found {
    bool parameter = false, plain = false;
  };
  std::map<size_t, Found> at;
  for (auto& list : lists) {
    for (size_t i = 0; auto& tensor : tensors_in(list)) {
      auto& found = at[i++];
      auto handle = handle_of(tensor);
      found.parameter = found.parameter || handle.owner || handle.kind == HandleKind::undecided;
      found.plain = found.plain || (handle.kind == HandleKind::none && !is_dtensor(tensor) && tensor.dim() > 0);
    }
  }
  return std::any_of(at.begin(), at.end(), [](auto& entry) { return entry.second.parameter && entry.second.plain; });
}

void own_storage(const at::Storage& storage, std::weak_ptr<ParamOwner> owner, size_t index, bool is_of_whole) {
  std::lock_guard lock(registry().mutex);
  registry().by_storage[storage.unsafeGetStorageImpl()] = {std::move(owner), index, is_of_whole};
}

void disown_storage(const at::Storage& storage) {
  std::lock_guard lock(registry().mutex);
  registry().by_storage.erase(storage.unsafeGetStorageImpl());
}

AtRest shards_at_rest() { return {&shards_behind, &show_again}; }

}  // namespace intarsia
