#pragma once
// A running sum that travels from host to host.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/transport/two_level/levels.h"

namespace intarsia {

constexpr int64_t kAllHosts = -1;

// Elements of the tensor that is reduced, and the host whose leader gets the sum of them; kAllHosts: every member of
// every host does.
struct ChainPiece {
  int64_t begin, count;
  int64_t home;
};

// The pieces of a tensor of `count` elements, of which host h is home to counts[h], one behind the other; of one home,
// if there are none.
std::vector<ChainPiece> cut_for_chain(int64_t element_size, int64_t count, const std::vector<int64_t>& counts);

// Reduces `mine` of all members, piece by piece, in the order of the line: each host adds the values of its members to
// what the hosts before it have added up. So every piece crosses each cable once, and the last host sends the sum home.
// Several pieces are on their way at a time. `sums` has the elements from `offset` on.
void reduce_along_chain(const Levels& levels, const Collective& call, const at::Tensor& mine,
                        const std::vector<ChainPiece>& pieces, const at::Tensor& sums, int64_t offset);

}  // namespace intarsia
