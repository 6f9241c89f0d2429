#pragma once
// Computes which rank sends which boxes to which rank when a tensor moves between layouts on any two meshes, without
// communicating.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/core/layout.h"
#include "intarsia/redistribute/common_runs.h"

namespace intarsia {

// What one rank gives another, or itself: runs of positions in the shards of both, dim by dim.
struct Transfer {
  int64_t sender, receiver;  // ranks
  std::vector<Runs> runs;
};

// Note [Who sends]
// A rank gets what it lacks, each position once, and from itself what it has: fewer bytes cannot do. Where several
// ranks hold the same, they share the work: each piece that is asked for goes to the one who has given least so far,
// and where there are fewer askers than holders, a piece is cut for several of them. Every rank makes the same list of
// all transfers.
//
// `from` has nothing pending. Where `to` has, only those want something who hold the value itself (see share.h). Of a
// mesh with several groups, one gives and one gets. `shape` has a dim at least: give a scalar as a tensor of one
// element.
std::vector<Transfer> transfers(const Layout& from, const Layout& to, c10::ArrayRef<int64_t> shape,
                                int64_t from_group = 0, int64_t to_group = 0);

std::string str(const std::vector<Transfer>& transfers);  // 0 -> 2: 12, 1 -> 1: 4 (elements)

}  // namespace intarsia
