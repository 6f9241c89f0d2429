#pragma once
// Reduces by a running sum that is sent from host to host.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "intarsia/transport/two_level/levels.h"

namespace intarsia {

constexpr int64_t kAllHosts = -1;

// Elements of the reduced tensor, and the host whose leader gets their sum; kAllHosts: every member of every host does.
struct ChainPiece {
  int64_t begin, count;
  int64_t home;
};

// Splits a tensor of `count` elements into pieces, of which host h is home to counts[h] elements, in order; without
// counts, all pieces have one home.
std::vector<ChainPiece> cut_for_chain(int64_t element_size, int64_t count, const std::vector<int64_t>& counts);

// Reduces `mine` of all members, piece by piece, in the order of the line: each host adds the values of its members to
// the running sum of the hosts before it. So every piece crosses each cable once, and the last host sends the sum home.
// Several pieces are in transit at a time. `sums` has the elements from `offset` on.
void reduce_along_chain(const Levels& levels, const Collective& call, const at::Tensor& mine,
                        const std::vector<ChainPiece>& pieces, const at::Tensor& sums, int64_t offset);

}  // namespace intarsia
