#include "intarsia/core/interposed.h"

#include <dlfcn.h>

namespace intarsia {

bool interposed() {
  // Ours is the first definition if it lies in the same library or program as this file.
  static const bool ours = [] {
    Dl_info here, print;
    auto* known = reinterpret_cast<void*>(&explain_missing_memory);
    auto* first = dlsym(RTLD_DEFAULT, "_ZN2at5printERSoRKNS_6TensorEl");
    return dladdr(known, &here) && first && dladdr(first, &print) && here.dli_fbase == print.dli_fbase;
  }();
  return ours;
}

void explain_missing_memory(c10::TensorImpl& impl) {
  if (C10_LIKELY(interposed())) return;
  impl.release_storage_and_set_meta_custom_data_ptr_error_msg_(
      "A distributed tensor has no memory of its own. Use to_local(tensor) or shards_of(tensor) for the local shard, "
      "full_tensor(tensor) for the whole, or intarsia::str(tensor) to print it.");
}

}  // namespace intarsia
