#include "intarsia/ops/images/rows.h"

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// Rows `want` of a tensor that covers rows `have`.
at::Tensor rows_of(const at::Tensor& tensor, int64_t dim, Interval have, Interval want) {
  if (want.size() == have.size()) return tensor;
  return tensor.narrow(dim, want.size() ? want.begin - have.begin : 0, want.size());
}

int64_t numel_per_row(const at::Tensor& tensor, int64_t dim) {
  int64_t numel = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) numel *= d == dim ? 1 : tensor.size(d);
  return numel;
}

// Zeros like `tensor`, over other rows.
at::Tensor with_rows(const at::Tensor& tensor, int64_t dim, Interval rows) {
  auto shape = tensor.sizes().vec();
  shape[dim] = rows.size();
  return at::zeros(shape, tensor.options());
}

at::Tensor packed(const at::Tensor& like, const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> flat;
  for (auto& part : parts) flat.push_back(part.reshape(-1));
  return flat.empty() ? like.new_empty({0}) : at::cat(flat);
}

struct Exchanged {
  Shards received;
  Counts counts;  // per slot and member
  Wait wait;
};

// Every slot sends `part(slot, member)`, which may be undefined, and receives rows `get(slot, member)`.
template <class Part, class Get>
Exchanged exchange(const Shards& like, int64_t dim, const Axis& axis, bool later, Part part, Get get) {
  Shards packets;
  Exchanged result;
  Counts send_counts;
  for (size_t slot = 0; slot < like.size(); ++slot) {
    auto me = axis.position(slot);
    auto per_row = numel_per_row(like[slot], dim);
    std::vector<at::Tensor> parts;
    auto& sends = send_counts.emplace_back(axis.size(), 0);
    auto& gets = result.counts.emplace_back(axis.size(), 0);
    int64_t total = 0;
    for (int64_t member = 0; member < axis.size(); ++member) {
      if (member == me) continue;
      if (auto sent = part(slot, member); sent.defined()) {
        sends[member] = sent.numel();
        parts.push_back(std::move(sent));
      }
      gets[member] = get(slot, member).size() * per_row;
      total += gets[member];
    }
    packets.push_back(packed(like[slot], parts));
    result.received.push_back(at::empty({total}, like[slot].options()));
  }
  axis.all_to_all(packets, send_counts, result.received, result.counts, later ? &result.wait : nullptr, "halo");
  return result;
}

// The parts that a slot received, shaped like `tensor` with other rows. Empty ones are left undefined.
std::vector<at::Tensor> unpacked(const Exchanged& exchanged, size_t slot, const at::Tensor& tensor, int64_t dim) {
  std::vector<at::Tensor> parts;
  auto shape = tensor.sizes().vec();
  auto per_row = numel_per_row(tensor, dim);
  int64_t passed = 0;
  for (auto count : exchanged.counts[slot]) {
    auto& part = parts.emplace_back();
    if (!count) continue;
    shape[dim] = count / per_row;
    part = exchanged.received[slot].narrow(0, passed, count).view(shape);
    passed += count;
  }
  return parts;
}

// Rows that lie in one of the pieces.
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

// What a member's pieces say of the rows that it holds; zeros for others. `written`: the result will be added to.
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

std::vector<Interval> held_along(const Layout& layout, int64_t dim, int64_t size) {
  auto axes = axes_cutting(layout, dim);
  int64_t members = 1;
  for (auto axis : axes) members *= layout.mesh().size(axis);
  std::vector<Interval> held;
  std::vector<int64_t> coordinate(layout.mesh().ndim(), 0);
  for (int64_t member = 0; member < members; ++member) {
    auto rest = member;
    for (size_t i = axes.size(); i-- > 0;) {
      coordinate[axes[i]] = rest % layout.mesh().size(axes[i]);
      rest /= layout.mesh().size(axes[i]);
    }
    auto runs = intervals_of(layout, dim, size, coordinate);
    TORCH_INTERNAL_ASSERT(runs.size() <= 1, "a strided shard holds no single run of rows");
    held.push_back(runs.empty() ? Interval{size, size} : runs[0]);
  }
  return held;
}

bool RowPlan::travels() const {
  for (size_t holder = 0; holder < held.size(); ++holder) {
    for (size_t needer = 0; needer < needed.size(); ++needer) {
      if (holder != needer && sent(holder, needer).size()) return true;
    }
  }
  return false;
}

Incoming start_fetch(const Shards& shards, const RowPlan& plan, const Axis& axis) {
  Exchanged exchanged;
  bool travels = plan.travels();
  if (travels) {
    auto send = [&](size_t slot, int64_t other) {
      auto me = axis.position(slot);
      auto rows = plan.sent(me, other);
      return rows.size() ? rows_of(shards[slot], plan.dim, plan.held[me], rows) : at::Tensor();
    };
    exchanged = exchange(shards, plan.dim, axis, true, send,
                         [&](size_t slot, int64_t other) { return plan.sent(other, axis.position(slot)); });
  }
  Incoming result{{}, std::move(exchanged.wait)};
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto me = axis.position(slot);
    auto& pieces = result.pieces.emplace_back();
    auto parts = travels ? unpacked(exchanged, slot, shards[slot], plan.dim) : std::vector<at::Tensor>(axis.size());
    if (plan.sent(me, me).size()) parts[me] = rows_of(shards[slot], plan.dim, plan.held[me], plan.sent(me, me));
    for (int64_t member = 0; member < axis.size(); ++member) {
      if (parts[member].defined()) pieces.push_back({plan.sent(member, me), parts[member], member == me});
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
  Exchanged exchanged;
  bool travels = plan.travels();
  if (travels) {
    auto send = [&](size_t slot, int64_t other) {
      auto rows = plan.sent(other, axis.position(slot));
      return rows.size() ? part_of(pieces[slot], plan.dim, rows) : at::Tensor();
    };
    exchanged = exchange(like, plan.dim, axis, false, send,
                         [&](size_t slot, int64_t other) { return plan.sent(axis.position(slot), other); });
  }
  Shards result;
  for (size_t slot = 0; slot < pieces.size(); ++slot) {
    auto me = axis.position(slot);
    auto parts = travels ? unpacked(exchanged, slot, like[slot], plan.dim) : std::vector<at::Tensor>(axis.size());
    bool others = std::any_of(parts.begin(), parts.end(), [](auto& part) { return part.defined(); });
    auto sum = own_rows(pieces[slot], plan, me, others);
    for (int64_t member = 0; member < axis.size(); ++member) {
      if (parts[member].defined()) rows_of(sum, plan.dim, plan.held[me], plan.sent(me, member)).add_(parts[member]);
    }
    result.push_back(sum);
  }
  return result;
}

}  // namespace intarsia
