#include "intarsia/checkpoint/pieces.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia::checkpoint {
namespace {

// For a per-rank tensor, rank 0's value is saved, as for any plain one.
at::Tensor plain_value(const at::Tensor& tensor) { return is_per_rank(tensor) ? value_at(tensor, 0) : tensor; }

void add_shards(const std::string& name, const at::Tensor& tensor, std::vector<OwnedPart>& parts) {
  auto& layout = layout_of(tensor);
  auto& slots = layout.mesh().slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].group != 0) continue;  // groups of a mesh have different tensors: the first is saved
    auto part = std::find_if(parts.begin(), parts.end(), [&](auto& part) { return part.rank == slots[slot].rank; });
    TORCH_CHECK_VALUE(part != parts.end(), "[checkpoint::save] \"", name, "\" is on ", layout.mesh().text(),
                      " of another world. Save it in the world in which it was made.");
    auto replicas = replicas_of(layout, slots[slot].coordinate, slots[slot].group);
    auto me = std::find(replicas.begin(), replicas.end(), slots[slot].rank) - replicas.begin();
    for (auto& [box, local] : boxes_of(layout, tensor.sizes(), slots[slot].coordinate)) {
      auto mine = part_of_box(box, replicas.size(), me);
      if (mine.count() == 0) continue;
      auto begin = local;
      for (size_t dim = 0; dim < begin.size(); ++dim) begin[dim] += mine.begin[dim] - box.begin[dim];
      part->pieces.push_back({name, mine, view_of_box(shards_of(tensor)[slot], begin, mine.shape)});
    }
  }
}

}  // namespace

std::vector<OwnedPart> owned_parts(const World& world, const Tensors& tensors,
                                   std::map<std::string, IndexedTensor>& forms) {
  at::NoGradGuard no_grad;
  std::vector<OwnedPart> parts;
  for (auto rank : world.hosted()) parts.push_back({rank, {}});
  for (auto& [name, given] : tensors) {
    auto tensor = given.detach();
    std::string text = "plain";
    if (is_dtensor(tensor)) {
      auto& layout = layout_of(tensor);
      if (layout.has_partial()) tensor = redistribute(tensor, settled(layout.placements()));
      text = str(layout_of(tensor));
      add_shards(name, tensor, parts);
    } else {
      tensor = plain_value(tensor);
      auto box = whole_box(tensor.sizes());
      if (box.count() && parts[0].rank == 0) parts[0].pieces.push_back({name, box, tensor});
    }
    forms[name] = {tensor.scalar_type(), c10::DimVector(tensor.sizes()), text, {}};
  }
  return parts;
}

std::string piece_name(const std::string& tensor, const Box& box, c10::ArrayRef<int64_t> shape) {
  return box == whole_box(shape) ? tensor : tensor + str(box);
}

}  // namespace intarsia::checkpoint
