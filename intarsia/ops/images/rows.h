#pragma once
// Fetches rows: along a sharded dim, every rank gets exactly the run of positions that it needs, from the ranks that
// hold it. The adjoint adds what was computed for fetched rows to the ranks that own them.

#include <vector>

#include "intarsia/comm/axis.h"
#include "intarsia/core/held.h"

namespace intarsia {

// Which member holds and which needs which positions of one dim; one entry per member of a line. Members hold ascending
// runs, and every needed position is held by a member. A run may span several members, or be empty. Nothing wraps
// around.
//
// Example: 8 rows on 4 ranks, a window of 3 with one row of padding: rank 1 holds [2, 4) and needs [1, 5).
struct RowPlan {
  int64_t dim;
  std::vector<Interval> held, needed;

  Interval sent(int64_t holder, int64_t needer) const { return overlap(held[holder], needed[needer]); }
  bool travels() const;  // whether any member needs rows of another
};

// Adjacent rows. A list of pieces is in ascending order.
struct Piece {
  Interval rows;
  at::Tensor values;
  bool own;  // held by this member
};
using Pieces = std::vector<Piece>;

// The needed rows of every slot, in the pieces in which they arrive. Its own are there at once, as views of what it
// holds; the others after `wait`, which is empty if there is nothing to wait for.
struct Incoming {
  std::vector<Pieces> pieces;
  Wait wait;
};
Incoming start_fetch(const Shards& shards, const RowPlan& plan, const Axis& axis);

// The pieces' rows within `run` as one tensor, with zeros where there are none; without `own`, also in place of its own
// rows. `like` is any tensor with the same other dims.
at::Tensor assembled(const Pieces& pieces, int64_t dim, Interval run, const at::Tensor& like, bool own = true);

// The needed rows of every slot: one exchange of kind "halo", or none if nothing is sent. A slot that needs exactly
// what it holds gets a view of it.
Shards fetch_rows(const Shards& shards, const RowPlan& plan, const Axis& axis);

// The adjoint: from tensors over the needed rows to tensors over the held rows. What several ranks computed for one row
// is added up: its owner's term first, then in the order of the line.
Shards return_rows(const Shards& fetched, const RowPlan& plan, const Axis& axis);

// The same from pieces, at least one per slot. A slot's own pieces may be written to: if one piece is all that it
// holds, the sum is made in it.
Shards return_pieces(const std::vector<Pieces>& pieces, const RowPlan& plan, const Axis& axis);

}  // namespace intarsia
