#include "intarsia/data_parallel/fully_shard/flat_gradients.h"

#include <map>

#include <ATen/ATen.h>

namespace intarsia {

void change_as_flat(const ShardsList& parts, const std::function<void(const Shards&)>& change) {
  std::map<at::ScalarType, ShardsList> by_dtype;
  for (auto& part : parts) by_dtype[part[0].scalar_type()].push_back(part);
  for (auto& [dtype, alike] : by_dtype) {
    Shards flat;
    for (size_t slot = 0; slot < alike[0].size(); ++slot) {
      std::vector<at::Tensor> of_slot;
      for (auto& part : alike) of_slot.push_back(part[slot].view(-1));
      flat.push_back(at::cat(of_slot));
    }
    change(flat);
    for (size_t slot = 0; slot < flat.size(); ++slot) {
      int64_t begin = 0;
      for (auto& part : alike) {
        part[slot].view(-1).copy_(flat[slot].narrow(0, begin, part[slot].numel()));
        begin += part[slot].numel();
      }
    }
  }
}

}  // namespace intarsia
