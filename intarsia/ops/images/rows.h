#pragma once
// Fetching rows: along a dim that is cut over ranks, every rank gets exactly the run of positions that it needs,
// wherever it lies; and the adjoint, which adds what was computed for fetched rows to the ranks that own them.

#include <vector>

#include "intarsia/comm/axis.h"
#include "intarsia/core/held.h"

namespace intarsia {

// Who holds and who needs which positions of one dim; one entry per member of a line. Members hold ascending runs, and
// needs lie within what is held by somebody. A run may span several members, or be empty. Nothing wraps around.
//
// Example: 8 rows on 4 ranks, a window of 3 with one row of padding: rank 1 holds [2, 4) and needs [1, 5).
struct RowPlan {
  int64_t dim;
  std::vector<Interval> held, needed;

  Interval sent(int64_t holder, int64_t needer) const { return overlap(held[holder], needed[needer]); }
  bool travels() const;  // whether any member needs rows of another
};

// Rows that lie together. A list of pieces is in ascending order.
struct Piece {
  Interval rows;
  at::Tensor values;
  bool own;  // not of another member
};
using Pieces = std::vector<Piece>;

// The needed rows of every slot, in the pieces in which they come. Its own are there at once, as views of what it
// holds; the others after `wait`, which is empty if nothing has to be waited for.
struct Incoming {
  std::vector<Pieces> pieces;
  Wait wait;
};
Incoming start_fetch(const Shards& shards, const RowPlan& plan, const Axis& axis);

// The pieces' rows within `run` as one tensor, with zeros where there are none; without `own`, also in place of the own
// rows. `like` is any tensor of the same other dims.
at::Tensor assembled(const Pieces& pieces, int64_t dim, Interval run, const at::Tensor& like, bool own = true);

// The needed rows of every slot: one exchange of kind "halo", or none if nothing travels. A slot that needs just what
// it holds gets a view of it.
Shards fetch_rows(const Shards& shards, const RowPlan& plan, const Axis& axis);

// The adjoint: from tensors over the needed rows to tensors over the held rows. What several ranks computed for one
// row is added up: its owner's first, then in the order of the line.
Shards return_rows(const Shards& fetched, const RowPlan& plan, const Axis& axis);

// The same from pieces, at least one per slot. Own ones may be written to: the sum is made in them where they are all
// that is held.
Shards return_pieces(const std::vector<Pieces>& pieces, const RowPlan& plan, const Axis& axis);

}  // namespace intarsia
