#pragma once
// Computes the boxes of the tensors that each rank writes.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"
#include "intarsia/checkpoint/items.h"
#include "intarsia/core/world.h"

namespace intarsia::checkpoint {

// A box that a rank owns, and its values: a view of its shard, dense where possible.
struct OwnedPiece {
  std::string tensor;
  Box box;
  at::Tensor values;
};

// The pieces that one hosted rank writes.
struct OwnedPart {
  int64_t rank;
  std::vector<OwnedPiece> pieces;
};

// Settles what is pending and decides which rank writes which box: ranks that hold the same data share the work. For a
// plain tensor, rank 0's is written, and for a tensor on a sliced mesh, that of its first group. One part per hosted
// rank, in their order. `forms` gets all tensors, without pieces.
std::vector<OwnedPart> owned_parts(const World& world, const Tensors& tensors,
                                   std::map<std::string, IndexedTensor>& forms);

// The name of a piece in its file: the tensor's name if it is whole, else with its box.
std::string piece_name(const std::string& tensor, const Box& box, c10::ArrayRef<int64_t> shape);

}  // namespace intarsia::checkpoint
