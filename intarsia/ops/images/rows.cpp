#include "intarsia/ops/images/rows.h"

#include <ATen/ATen.h>

#include "intarsia/redistribute/run/exchange.h"

namespace intarsia {
namespace {

// Rows `want` of a tensor that covers rows `have`.
at::Tensor rows_of(const at::Tensor& tensor, int64_t dim, Interval have, Interval want) {
  if (want.size() == have.size()) return tensor;
  return tensor.narrow(dim, want.size() ? want.begin - have.begin : 0, want.size());
}

// Zeros like `tensor`, with other rows.
at::Tensor with_rows(const at::Tensor& tensor, int64_t dim, Interval rows) {
  return at::zeros(with_size(tensor.sizes(), dim, rows.size()), tensor.options());
}

// Every slot sends the others the rows of its own that they need, or with `back`, what it has of theirs, as `part(slot,
// rows)`; what it receives is shaped as `like` with other rows, member by member. No collective if nothing is sent.
template <class Part>
Exchanged exchange_rows(const Shards& like, const RowPlan& plan, const Axis& axis, bool back, Part part) {
  auto none = std::make_shared<const std::vector<c10::DimVector>>();
  if (!plan.travels()) return {Shards(like.size()), std::vector<PieceShapes>(like.size(), none), {}};
  std::vector<Trade> trades;
  for (size_t slot = 0; slot < like.size(); ++slot) {
    auto me = axis.position(slot);
    auto& trade = trades.emplace_back(axis, like[slot].options());
    for (int64_t member = 0; member < axis.size(); ++member) {
      if (member == me) continue;
      auto given = plan.sent(me, member), got = plan.sent(member, me);
      if (back) std::swap(given, got);
      if (given.size()) trade.give(member, part(slot, given));
      if (got.size()) trade.get(member, with_size(like[slot].sizes(), plan.dim, got.size()));
    }
  }
  return exchange(axis, std::move(trades), !back, Collective::halo);
}

// The piece that contains the rows.
const Piece& piece_with(const Pieces& pieces, Interval rows) {
  for (auto& piece : pieces) {
    if (overlap(piece.rows, rows) == rows) return piece;
  }
  TORCH_INTERNAL_ASSERT(false, "no piece has rows ", rows.begin, " to ", rows.end);
}

at::Tensor part_of(const Pieces& pieces, int64_t dim, Interval rows) {
  auto& piece = piece_with(pieces, rows);
  return rows_of(piece.values, dim, piece.rows, rows);
}

// A member's own rows from its pieces; zeros for the rest. `written`: the result will be added to.
at::Tensor own_rows(const Pieces& pieces, const RowPlan& plan, int64_t me, bool written) {
  auto mine = plan.sent(me, me), held = plan.held[me];
  if (mine.size() && mine == held) {
    auto part = part_of(pieces, plan.dim, mine);
    return written && !piece_with(pieces, mine).own ? part.clone(at::MemoryFormat::Contiguous) : part;
  }
  auto rows = with_rows(pieces[0].values, plan.dim, held);
  if (mine.size()) rows_of(rows, plan.dim, held, mine).copy_(part_of(pieces, plan.dim, mine));
  return rows;
}

}  // namespace

bool RowPlan::travels() const {
  for (size_t holder = 0; holder < held.size(); ++holder) {
    for (size_t needer = 0; needer < needed.size(); ++needer) {
      if (holder != needer && sent(holder, needer).size()) return true;
    }
  }
  return false;
}

Incoming start_fetch(const Shards& shards, const RowPlan& plan, const Axis& axis) {
  auto own = [&](size_t slot, Interval rows) {
    return rows_of(shards[slot], plan.dim, plan.held[axis.position(slot)], rows);
  };
  auto exchanged = exchange_rows(shards, plan, axis, false, own);
  Incoming result{{}, exchanged.wait};
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto me = axis.position(slot);
    auto& pieces = result.pieces.emplace_back();
    auto fetched = exchanged.pieces(slot);
    auto next = fetched.begin();
    for (int64_t member = 0; member < axis.size(); ++member) {
      auto rows = plan.sent(member, me);
      if (rows.size()) pieces.push_back({rows, member == me ? own(slot, rows) : *next++, member == me});
    }
  }
  return result;
}

at::Tensor assembled(const Pieces& pieces, int64_t dim, Interval run, const at::Tensor& like, bool own) {
  std::vector<at::Tensor> parts;
  auto passed = run.begin;
  auto zeros_until = [&](int64_t end) {
    if (end > passed) parts.push_back(with_rows(like, dim, {passed, end}));
    passed = end;
  };
  for (auto& piece : pieces) {
    auto rows = overlap(piece.rows, run);
    if (rows.size() == 0 || (piece.own && !own)) continue;
    zeros_until(rows.begin);
    parts.push_back(rows_of(piece.values, dim, piece.rows, rows));
    passed = rows.end;
  }
  zeros_until(run.end);
  if (parts.empty()) return with_rows(like, dim, run);
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

Shards fetch_rows(const Shards& shards, const RowPlan& plan, const Axis& axis) {
  auto incoming = start_fetch(shards, plan, axis);
  if (incoming.wait) incoming.wait();
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(assembled(incoming.pieces[slot], plan.dim, plan.needed[axis.position(slot)], shards[slot]));
  }
  return result;
}

Shards return_rows(const Shards& fetched, const RowPlan& plan, const Axis& axis) {
  std::vector<Pieces> pieces;
  for (size_t slot = 0; slot < fetched.size(); ++slot) {
    pieces.push_back({{plan.needed[axis.position(slot)], fetched[slot], false}});
  }
  return return_pieces(pieces, plan, axis);
}

Shards return_pieces(const std::vector<Pieces>& pieces, const RowPlan& plan, const Axis& axis) {
  Shards like;
  for (auto& of_slot : pieces) like.push_back(of_slot[0].values);
  auto exchanged = exchange_rows(like, plan, axis, true,
                                 [&](size_t slot, Interval rows) { return part_of(pieces[slot], plan.dim, rows); });
  Shards result;
  for (size_t slot = 0; slot < pieces.size(); ++slot) {
    auto me = axis.position(slot);
    auto returned = exchanged.pieces(slot);
    auto sum = own_rows(pieces[slot], plan, me, !returned.empty());
    auto next = returned.begin();
    for (int64_t member = 0; member < axis.size(); ++member) {
      auto rows = plan.sent(me, member);
      if (member != me && rows.size()) rows_of(sum, plan.dim, plan.held[me], rows).add_(*next++);
    }
    result.push_back(sum);
  }
  return result;
}

}  // namespace intarsia
