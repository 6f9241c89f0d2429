#include "intarsia/redistribute/run/exchange.h"

#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/comm/flat_list.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

// Communication is below autograd: it need not track the views that packing and unpacking create, which costs more than
// creating them.
using BelowGradients = at::AutoDispatchBelowADInplaceOrView;

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

std::vector<int64_t> counts_of(const std::vector<c10::DimVector>& shapes) {
  std::vector<int64_t> counts;
  counts.reserve(shapes.size());
  for (auto& shape : shapes) counts.push_back(c10::multiply_integers(shape));
  return counts;
}

// What is under way belongs to the engine, and whoever gave it may write to it meanwhile.
at::Tensor packed_to_send(c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options, bool later) {
  return later ? pack(pieces, options) : packed(pieces, options);
}

}  // namespace

Trade::Trade(const Axis& axis, const at::TensorOptions& options)
    : options_(options), given_counts_(axis.size(), 0), got_counts_(axis.size(), 0) {}

void Trade::give(int64_t member, at::Tensor piece) {
  TORCH_INTERNAL_ASSERT(last_given_ <= member, "pieces are given in the order of the members");
  if (!piece.defined()) return;
  last_given_ = member;
  given_counts_[member] += piece.numel();
  given_.push_back(std::move(piece));
}

void Trade::get(int64_t member, c10::ArrayRef<int64_t> shape) {
  TORCH_INTERNAL_ASSERT(last_got_ <= member, "pieces are got in the order of the members");
  last_got_ = member;
  got_counts_[member] += c10::multiply_integers(shape);
  shapes_.emplace_back(shape);
}

std::vector<at::Tensor> Exchanged::pieces(size_t slot) const {
  BelowGradients guard;
  FlatParts parts(received[slot]);
  std::vector<at::Tensor> pieces;
  pieces.reserve(shapes[slot]->size());
  for (auto& shape : *shapes[slot]) pieces.push_back(parts.next(shape));
  return pieces;
}

Exchanged exchange(const Axis& axis, std::vector<Trade> trades, bool later, Collective::Kind kind) {
  BelowGradients guard;
  Exchanged result;
  Shards send;
  Counts given, got;
  for (auto& trade : trades) {
    send.push_back(packed_to_send(trade.given_, trade.options_, later));
    add_room(result.received, {sum_of(trade.got_counts_)}, trade.options_, trades.size());
    result.shapes.push_back(std::make_shared<std::vector<c10::DimVector>>(std::move(trade.shapes_)));
    given.push_back(std::move(trade.given_counts_));
    got.push_back(std::move(trade.got_counts_));
  }
  axis.all_to_all(send, given, result.received, got, later ? &result.wait : nullptr, kind);
  return result;
}

Exchanged gather(const Axis& axis, const Shards& mine, std::vector<PieceShapes> shapes, bool later) {
  BelowGradients guard;
  Exchanged result;
  auto send = made_once(mine, [&](auto& shard) { return packed_to_send(shard, shard.options(), later); });
  Counts counts;
  for (size_t slot = 0; slot < mine.size(); ++slot) {
    bool as_before = slot > 0 && shapes[slot] == shapes[slot - 1];
    counts.push_back(as_before ? counts.back() : counts_of(*shapes[slot]));
    auto& count = counts.back();
    add_room(result.received, {sum_of(count)}, mine[slot].options(), mine.size());
  }
  result.shapes = std::move(shapes);
  axis.all_gather(send, result.received, counts, later ? &result.wait : nullptr);
  return result;
}

at::Tensor packed(c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options) {
  BelowGradients guard;
  return joined(pieces, options);
}

}  // namespace intarsia
