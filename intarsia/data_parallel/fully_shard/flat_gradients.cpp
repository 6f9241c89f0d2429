#include "intarsia/data_parallel/fully_shard/flat_gradients.h"

#include "intarsia/comm/flat_list.h"

namespace intarsia {

void change_as_flat(const ShardsList& parts, const std::function<void(const Shards&)>& change) {
  for (auto& places : places_by_dtype(parts.size(), [&](size_t i) { return parts[i][0].scalar_type(); })) {
    std::vector<std::vector<at::Tensor>> by_slot(parts[places[0]].size());
    for (auto place : places) {
      for (size_t slot = 0; slot < by_slot.size(); ++slot) by_slot[slot].push_back(parts[place][slot]);
    }
    Shards flat;
    for (auto& tensors : by_slot) flat.push_back(pack(tensors));
    change(flat);
    for (size_t slot = 0; slot < flat.size(); ++slot) unpack(flat[slot], by_slot[slot]);
  }
}

}  // namespace intarsia
