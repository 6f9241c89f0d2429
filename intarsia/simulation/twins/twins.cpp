#include "intarsia/simulation/twins/twins.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>

namespace intarsia {
namespace {

// Memory that storages share, and how many hold it.
struct Common {
  at::DataPtr memory;
  std::atomic<int64_t> holders;
};

void let_go(void* context) {
  auto* common = static_cast<Common*>(context);
  if (common->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete common;
}

// Null if the storage shares its memory with no other in this way.
Common* common_of(const c10::StorageImpl& storage) {
  auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &let_go ? static_cast<Common*>(data.get_context()) : nullptr;
}

at::DataPtr copy_of(const at::DataPtr& data, c10::StorageImpl& storage) {
  auto* allocator = storage.allocator() ? storage.allocator() : c10::GetCPUAllocator();
  auto copy = allocator->allocate(storage.nbytes());
  if (storage.nbytes()) std::memcpy(copy.mutable_get(), data.get(), storage.nbytes());
  return copy;
}

// LibTorch calls this before the storage is written to: it gives the storage separate memory. A storage that was
// resized meanwhile may hold no shared memory any more.
void part(c10::StorageImpl* storage) {
  static auto* mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  auto* common = common_of(*storage);
  if (!common) return;
  bool is_last = common->holders.load(std::memory_order_acquire) == 1;
  auto own = is_last ? std::move(common->memory) : copy_of(storage->_mutable_data_ptr_no_checks(), *storage);
  storage->set_data_ptr_noswap(std::move(own));
}

void hold(c10::StorageImpl& storage, Common* common) {
  auto& memory = common->memory;
  storage.set_data_ptr_noswap({memory.mutable_get(), common, &let_go, memory.device()});
  storage.clear_materializer();
  storage.set_materializer(&part);
}

// Lets other storages share the memory of this one.
Common* made_common(c10::StorageImpl& storage) {
  if (auto* common = common_of(storage)) return common;
  storage.mutable_data();  // if LibTorch's copy-on-write shares its memory, this separates it
  auto* common = new Common{std::move(storage._mutable_data_ptr_no_checks()), 1};
  hold(storage, common);
  return common;
}

void share_memory(c10::StorageImpl& storage, c10::StorageImpl& of) {
  auto* common = made_common(of);
  common->holders.fetch_add(1, std::memory_order_relaxed);
  hold(storage, common);  // releases what it held before
}

c10::Storage twin_of(const c10::Storage& storage) {
  auto& impl = *storage.unsafeGetStorageImpl();
  auto twin =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl.nbytes(),
                                            at::DataPtr(nullptr, impl.device()), impl.allocator(), impl.resizable());
  share_memory(*twin, impl);
  return c10::Storage(std::move(twin));
}

// Whether it is a strided tensor in CPU memory.
bool shows_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized();
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

const char* data_of(const at::Tensor& tensor) {
  auto* begin = static_cast<const char*>(storage_of(tensor)._mutable_data_ptr_no_checks().get());
  return begin + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
}

bool covers_its_storage(const at::Tensor& tensor) {
  return shows_memory(tensor) && tensor.is_contiguous() && tensor.nbytes() == storage_of(tensor).nbytes();
}

// The same view over another storage of the same kind.
at::Tensor over(c10::Storage storage, const at::Tensor& tensor) {
  if (tensor.is_inference() == c10::InferenceMode::is_enabled()) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), tensor.key_set(), tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return at::Tensor(std::move(impl));
  }
  auto impl = tensor.getIntrusivePtr()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  impl->set_storage_keep_dtype(std::move(storage));
  return at::Tensor(std::move(impl));
}

}  // namespace

bool are_twins(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  return shows_memory(a) && shows_memory(b) && data_of(a) == data_of(b) &&
         storage_of(a).nbytes() == storage_of(b).nbytes() && a.key_set() == b.key_set() && a.dtype() == b.dtype() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool may_write_once(const at::Tensor& a, const at::Tensor& b) {
  if (!are_twins(a, b)) return false;
  if (!a.defined() || a.is_same(b) || a.is_alias_of(b) || storage_of(a).nbytes() == 0) return true;
  auto* common = common_of(storage_of(a));
  return common && common == common_of(storage_of(b));
}

uint64_t twin_hash(const at::Tensor& tensor) {
  if (!shows_memory(tensor)) return reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl());
  return reinterpret_cast<uintptr_t>(data_of(tensor));
}

at::Tensor twin_of(const at::Tensor& value) {
  if (!shows_memory(value)) return value.defined() ? value.clone() : value;
  return over(twin_of(value.storage()), value);
}

at::Tensor shareable(at::Tensor tensor) {
  if (shows_memory(tensor)) made_common(storage_of(tensor));
  return tensor;
}

void add_room(Shards& rooms, at::IntArrayRef sizes, const at::TensorOptions& options, size_t slots) {
  bool as_before = !rooms.empty() && rooms.back().sizes() == sizes && rooms.back().dtype() == options.dtype();
  if (as_before) {
    rooms.push_back(twin_of(rooms.back()));
  } else {
    rooms.push_back(slots > 1 ? shareable(at::empty(sizes, options)) : at::empty(sizes, options));
  }
}

bool may_become_twins(const at::Tensor& a, const at::Tensor& b) {
  return covers_its_storage(a) && covers_its_storage(b) && common_of(storage_of(a)) && common_of(storage_of(b)) &&
         a.key_set() == b.key_set() && a.dtype() == b.dtype() && a.sizes() == b.sizes();
}

void become_twin(const at::Tensor& target, const at::Tensor& value) {
  if (are_twins(target, value)) return;
  if (!may_become_twins(target, value)) {
    target.copy_(value);
  } else {
    share_memory(storage_of(target), storage_of(value));
  }
}

at::Tensor made_from(const at::Tensor& result, c10::ArrayRef<at::Tensor> from, c10::ArrayRef<at::Tensor> to) {
  if (!result.defined()) return result;
  for (size_t i = 0; i < from.size(); ++i) {
    if (result.is_same(from[i])) return to[i];
  }
  if (!shows_memory(result)) return result.clone();
  for (size_t i = 0; i < from.size(); ++i) {
    if (shows_memory(from[i]) && result.is_alias_of(from[i])) return over(to[i].storage(), result);
  }
  return twin_of(result);
}

WriteForTwins::WriteForTwins(c10::ArrayRef<at::Tensor> read) {
  for (auto& tensor : read) {
    if (shows_memory(tensor)) read_.push_back(&storage_of(tensor));
  }
  std::sort(read_.begin(), read_.end());
}

void WriteForTwins::add(const at::Tensor& first, const at::Tensor& twin) {
  if (!shows_memory(first) || first.is_alias_of(twin) || storage_of(first).nbytes() == 0) return;
  follow_.emplace_back(first.storage(), twin.storage());
  auto& storage = storage_of(twin);
  if (!std::binary_search(read_.begin(), read_.end(), &storage))
    storage.set_data_ptr_noswap({nullptr, storage.device()});
}

WriteForTwins::~WriteForTwins() {
  for (auto& [first, twin] : follow_) share_memory(*twin.unsafeGetStorageImpl(), *first.unsafeGetStorageImpl());
}

}  // namespace intarsia
