#pragma once
// Computes which rank sends which boxes to which rank when a tensor moves between layouts on any two meshes. Nothing is
// sent.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/core/layout.h"
#include "intarsia/redistribute/common_runs.h"

namespace intarsia {

// What one rank sends to another, or keeps: runs of positions in the shards of both, dim by dim.
struct Transfer {
  int64_t sender, receiver;  // ranks
  std::vector<Runs> runs;
};

// Note [Who sends]
// A rank receives what it lacks, each position once, and keeps what it has: no plan sends fewer bytes. If several ranks
// hold the same, they share the work: the one that has sent least so far sends the next piece, and if fewer ranks
// request pieces than hold them, a piece is split between several holders. Every rank computes the same list of all
// transfers.
//
// `from` has nothing pending. If `to` has, only the ranks that hold the value itself receive something (see share.h).
// Of a mesh with several groups, one group sends or receives. `shape` has at least one dim: pass a scalar as a tensor
// of one element.
std::vector<Transfer> transfers(const Layout& from, const Layout& to, c10::ArrayRef<int64_t> shape,
                                int64_t from_group = 0, int64_t to_group = 0);

std::string str(const std::vector<Transfer>& transfers);  // 0 -> 2: 12, 1 -> 1: 4 (elements)

}  // namespace intarsia
