#include "intarsia/data_parallel/fully_shard/set_data.h"

#include <memory>

#include "intarsia/core/foreign.h"
#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/libtorch/variable_hooks.h"

namespace intarsia {
namespace {

bool take_value(const at::Tensor& leaf, const at::Tensor& data) {
  auto owner = leaf.is_leaf() ? std::dynamic_pointer_cast<ParamOwner>(watcher_of(leaf)) : nullptr;
  if (!owner) return false;
  check_no_wrapper(data, "set_data", "the data of a parameter");
  owner->take_value(leaf, data);
  return true;
}

}  // namespace

void watch_set_data() { replace_set_data(&take_value); }

}  // namespace intarsia
