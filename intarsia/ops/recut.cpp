#include "intarsia/ops/recut.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Positions = std::vector<int64_t>;

// What one member gives another: per tensor, local positions at the giver and at the taker.
struct Gift {
  std::vector<Positions> from, to;
  int64_t extent = 0;
};
using Gifts = std::vector<std::vector<Gift>>;  // [giver][taker]

struct Holder {
  int64_t member, local;
};

std::vector<Holder> holders_of(const std::vector<Intervals>& held, int64_t size) {
  std::vector<Holder> holders(size);
  for (size_t member = 0; member < held.size(); ++member) {
    int64_t local = 0;
    for (auto& run : held[member]) {
      for (auto p = run.begin; p < run.end; ++p) holders[p] = {static_cast<int64_t>(member), local++};
    }
  }
  return holders;
}

Gifts gifts_for(const Layout& layout, const std::vector<at::Tensor>& tensors, int64_t dim,
                const std::vector<Source>& sources) {
  std::vector<std::vector<Holder>> holders;
  for (auto& tensor : tensors) holders.push_back(holders_of(held_by_members(layout, dim, tensor.size(dim)), tensor.size(dim)));
  auto wanted = held_by_members(layout, dim, sources.size());
  Gift none{std::vector<Positions>(tensors.size()), std::vector<Positions>(tensors.size()), 0};
  Gifts gifts(wanted.size(), std::vector<Gift>(wanted.size(), none));
  for (size_t taker = 0; taker < wanted.size(); ++taker) {
    int64_t place = 0;
    for (auto& run : wanted[taker]) {
      for (auto p = run.begin; p < run.end; ++p, ++place) {
        auto& source = sources[p];
        if (source.tensor < 0) continue;
        auto& holder = holders[source.tensor][source.position];
        auto& gift = gifts[holder.member][taker];
        gift.from[source.tensor].push_back(holder.local);
        gift.to[source.tensor].push_back(place);
        ++gift.extent;
      }
    }
  }
  return gifts;
}

bool is_run(const Positions& positions) {
  for (size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] != positions[i - 1] + 1) return false;
  }
  return true;
}

at::Tensor take(const at::Tensor& tensor, int64_t dim, const Positions& positions) {
  if (is_run(positions)) return tensor.narrow(dim, positions[0], positions.size());
  return tensor.index_select(dim, at::tensor(positions, tensor.options().dtype(at::kLong)));
}

void put(const at::Tensor& target, int64_t dim, const Positions& positions, const at::Tensor& piece) {
  if (is_run(positions)) {
    target.narrow(dim, positions[0], positions.size()).copy_(piece);
  } else {
    at::Tensor(target).index_copy_(dim, at::tensor(positions, target.options().dtype(at::kLong)), piece);
  }
}

at::Tensor flat(const std::vector<at::Tensor>& pieces, const at::Tensor& like) {
  std::vector<at::Tensor> parts;
  for (auto& piece : pieces) parts.push_back(piece.reshape({-1}));
  return parts.empty() ? at::empty({0}, like.options()) : at::cat(parts).contiguous();
}

}  // namespace

std::vector<Intervals> held_by_members(const Layout& layout, int64_t dim, int64_t size) {
  auto axes = axes_cutting(layout, dim);
  auto& mesh = layout.mesh();
  int64_t members = 1;
  for (auto axis : axes) members *= mesh.size(axis);
  std::vector<Intervals> held;
  for (int64_t member = 0; member < members; ++member) {
    std::vector<int64_t> coordinate(mesh.ndim(), 0);  // the other axes do not cut this dim
    auto rest = member;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      coordinate[*axis] = rest % mesh.size(*axis);
      rest /= mesh.size(*axis);
    }
    held.push_back(intervals_of(layout, dim, size, coordinate));
  }
  return held;
}

at::Tensor recut(const std::vector<at::Tensor>& tensors, int64_t dim, const std::vector<Source>& sources) {
  auto& layout = *meta_of(tensors[0]).layout;
  auto& axis = Axis::of(layout.mesh(), axes_cutting(layout, dim));
  auto gifts = gifts_for(layout, tensors, dim, sources);
  auto members = static_cast<int64_t>(gifts.size());
  bool moves = false;
  for (int64_t giver = 0; giver < members; ++giver) {
    for (int64_t taker = 0; taker < members; ++taker) moves = moves || (giver != taker && gifts[giver][taker].extent > 0);
  }
  auto sizes = tensors[0].sizes().vec();
  sizes[dim] = sources.size();

  auto slots = axis.slot_count();
  std::vector<Shards> locals;  // [tensor][slot]
  for (auto& tensor : tensors) {
    auto& shards = locals.emplace_back(meta_of(tensor).shards());
    for (auto& shard : shards) shard = shard.resolve_conj().resolve_neg();
  }
  Shards results, send, receive;
  Counts send_counts, receive_counts;
  std::vector<int64_t> slices;  // elements in one position of dim
  for (size_t slot = 0; slot < slots; ++slot) {
    auto me = axis.position(slot);
    auto& like = locals[0][slot];
    auto shape = local_shape(layout, sizes, layout.mesh().slots()[slot].coordinate);
    results.push_back(at::zeros(shape, like.options()));
    shape[dim] = 1;
    slices.push_back(c10::multiply_integers(shape));
    std::vector<at::Tensor> pieces;
    auto& given = send_counts.emplace_back();
    auto& taken = receive_counts.emplace_back();
    for (int64_t other = 0; other < members; ++other) {
      for (size_t t = 0; t < tensors.size(); ++t) {
        auto& gift = gifts[me][other];
        if (gift.from[t].empty()) continue;
        auto piece = take(locals[t][slot], dim, gift.from[t]);
        if (other == me) {
          put(results[slot], dim, gift.to[t], piece);
        } else {
          pieces.push_back(std::move(piece));
        }
      }
      given.push_back(other == me ? 0 : gifts[me][other].extent * slices[slot]);
      taken.push_back(other == me ? 0 : gifts[other][me].extent * slices[slot]);
    }
    if (!moves) continue;
    send.push_back(flat(pieces, like));
    int64_t total = 0;
    for (auto count : taken) total += count;
    receive.push_back(at::empty({total}, like.options()));
  }
  if (moves && slots > 0) axis.all_to_all(send, send_counts, receive, receive_counts);
  for (size_t slot = 0; moves && slot < slots; ++slot) {
    int64_t offset = 0;
    auto me = axis.position(slot);
    for (int64_t other = 0; other < members; ++other) {
      for (size_t t = 0; other != me && t < tensors.size(); ++t) {
        auto& places = gifts[other][me].to[t];
        if (places.empty()) continue;
        auto shape = results[slot].sizes().vec();
        shape[dim] = places.size();
        auto count = static_cast<int64_t>(places.size()) * slices[slot];
        put(results[slot], dim, places, receive[slot].narrow(0, offset, count).view(shape));
        offset += count;
      }
    }
  }
  return wrap(std::move(results), &layout, sizes, c10::contiguous_strides(sizes), tensors[0].dtype());
}

Shards gather_along(const Axis& axis, const Shards& pieces, int64_t dim, const std::vector<int64_t>& extents) {
  Shards mine, all;
  Counts counts;
  for (auto& piece : pieces) {
    auto shape = piece.sizes().vec();
    shape[dim] = 1;
    auto slice = c10::multiply_integers(shape);
    auto& per_member = counts.emplace_back();
    int64_t total = 0;
    for (auto extent : extents) total += per_member.emplace_back(extent * slice);
    mine.push_back(piece.contiguous().view({-1}));
    all.push_back(at::empty({total}, piece.options()));
  }
  if (!pieces.empty()) axis.all_gather(mine, all, counts);
  Shards joined;
  for (size_t slot = 0; slot < pieces.size(); ++slot) {
    std::vector<at::Tensor> parts;
    int64_t offset = 0;
    for (size_t member = 0; member < extents.size(); ++member) {
      auto shape = pieces[slot].sizes().vec();
      shape[dim] = extents[member];
      parts.push_back(all[slot].narrow(0, offset, counts[slot][member]).view(shape));
      offset += counts[slot][member];
    }
    joined.push_back(at::cat(parts, dim));
  }
  return joined;
}

const Layout* without_cut(const Layout& layout, int64_t dim, bool removed) {
  auto placements = layout.placements();
  for (auto& p : placements) {
    auto own = cut_dim(p);
    if (own == dim) p = Replicate();
    else if (removed && own > dim) p = with_cut_dim(p, own - 1);
  }
  return layout.with(placements);
}

at::Tensor brought_to(const at::Tensor& tensor, const Layout* layout) {
  if (meta_of(tensor).layout == layout) return tensor;
  return wrap(shards_in(tensor, layout), layout, tensor.sizes(), tensor.strides(), tensor.dtype());
}

}  // namespace intarsia
