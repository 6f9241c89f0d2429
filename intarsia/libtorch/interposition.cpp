#include "intarsia/libtorch/interposition.h"

#include <dlfcn.h>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

constexpr const char* kInterposed[] = {symbols::kPrint,      symbols::kDataPtrError,  symbols::kStorageError,
                                       symbols::kLinear,     symbols::kCrossMapLRN2d, symbols::kMultiheadAttention,
                                       symbols::kOrthogonal, symbols::kSparse,        symbols::kBatchNorm};

// Python loads LibTorch where a search by name alone does not find it.
void* in_libtorch(const char* symbol) {
  for (auto* file : {"libtorch_cpu.so", "libc10.so"}) {
    auto* library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    if (!library) continue;
    auto* found = dlsym(library, symbol);
    dlclose(library);
    if (found) return found;
  }
  return nullptr;
}

}  // namespace

void* find_definition(const char* symbol) {
  auto* found = dlsym(RTLD_NEXT, symbol);
  return found ? found : in_libtorch(symbol);
}

void* next_definition(const char* symbol) {
  auto* found = find_definition(symbol);
  TORCH_INTERNAL_ASSERT(found, "LibTorch does not export ", symbol);
  return found;
}

bool is_first_definition(const char* symbol) {
  Dl_info here, there;  // our function is in the same library or program as this file
  auto* known = reinterpret_cast<void*>(&explain_missing_memory);
  auto* first = dlsym(RTLD_DEFAULT, symbol);
  return dladdr(known, &here) && first && dladdr(first, &there) && here.dli_fbase == there.dli_fbase;
}

bool interposed() {
  static const bool ours = is_first_definition(symbols::kPrint);
  return ours;
}

void explain_missing_memory(c10::TensorImpl& impl) {
  if (C10_LIKELY(interposed())) return;
  impl.release_storage_and_set_meta_custom_data_ptr_error_msg_(
      "A distributed tensor has no memory of its own. Use to_local(tensor) or shards_of(tensor) for the local shard, "
      "full_tensor(tensor) for the whole, or intarsia::str(tensor) to print it.");
}

std::string missing_definitions() {
  std::string text;
  for (auto* symbol : kInterposed) {
    if (!find_definition(symbol)) text.append(text.empty() ? "" : ", ").append(symbol);
  }
  return text;
}

}  // namespace intarsia
