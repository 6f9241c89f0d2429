#pragma once
// Shares reads between ranks that need parts of the same blocks of a file: one rank reads a block and sends the parts.
//
// Note [Whole blocks]
// Data is checked when it is read, and a checksum covers a whole block of 1 MiB. If a tensor was saved by rows and is
// wanted by columns, every block has something for every rank: each rank would read all of them, n times what it keeps.
// So they share: one rank reads and checks each block, and sends the others what they want of it. A rank reads little
// more than its share: slabs of 8 MiB begin and end within blocks.

#include <string>
#include <vector>

#include "intarsia/checkpoint/reader.h"
#include "intarsia/core/layout.h"

namespace intarsia::checkpoint {

// A distributed tensor, nothing pending, that is read from a stored one of its shape.
struct SharedTarget {
  const IndexedTensor* stored;
  std::string name;
  at::Tensor tensor;
};

// Whether the ranks of a mesh would read more than one and a half times what they want. The same on every rank.
bool is_read_jointly(const IndexedTensor& stored, const Layout& layout);

// A text for a tensor that is read jointly, which must be the same on every rank of its mesh.
std::string joint_text(const SharedTarget& target);

// Reads all of them, which are on `mesh`; all ranks of it call it together, with the same list. The first error goes to
// `error`, and the exchange continues, so that no rank is left waiting.
void read_jointly(const DeviceMesh& mesh, const std::vector<SharedTarget>& targets, PieceReader& reader,
                  Progress& progress, std::string& error);

}  // namespace intarsia::checkpoint
