#include "intarsia/redistribute/run.h"

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/redistribute/overlap.h"

namespace intarsia {
namespace {

using Finish = std::function<Shards()>;

c10::SmallVector<int64_t, 5> with_size(c10::ArrayRef<int64_t> shape, int64_t dim, int64_t size) {
  c10::SmallVector<int64_t, 5> result(shape.begin(), shape.end());
  result[dim] = size;
  return result;
}

int64_t numel_of(c10::ArrayRef<int64_t> shape) {
  int64_t n = 1;
  for (auto extent : shape) n *= extent;
  return n;
}

// Note [A value as a pending reduction]
// A value x becomes Partial(op) so that reducing the ranks' shares gives x back, bit for bit: the first rank of the
// axis holds x and the others the neutral element, or all hold x where reducing equal values changes nothing.
at::Tensor share_of(const at::Tensor& value, ReduceOp op, int64_t position) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::bxor: return position == 0 ? value : at::zeros_like(value);
    case ReduceOp::product: return position == 0 ? value : at::ones_like(value);
    default: return value;
  }
}

Shards pend(const Step& step, const Shards& shards) {
  auto op = std::get<Partial>(step.to->placements()[step.axes[0]]).op;
  auto& axis = Axis::of(step.from->mesh(), step.axes);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(share_of(shards[slot], op, axis.position(slot)));
  }
  return result;
}

Shards narrow(const Step& step, const Shards& shards) {
  auto& axis = Axis::of(step.from->mesh(), step.axes);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(part_of(shards[slot], step.to->placements()[step.axes[0]], axis.size(), axis.position(slot)));
  }
  return result;
}

// Copies the elements of `piece` to the places that `runs` names in `target`, dim by dim.
void place(at::Tensor target, at::Tensor piece, c10::ArrayRef<Runs> runs, int64_t dim = 0) {
  if (dim == static_cast<int64_t>(runs.size())) return void(target.copy_(piece));
  int64_t offset = 0;
  for (auto& run : runs[dim]) {
    place(target.narrow(dim, run.target, run.size), piece.narrow(dim, offset, run.size), runs, dim + 1);
    offset += run.size;
  }
}

at::Tensor extract(at::Tensor tensor, c10::ArrayRef<Runs> runs) {
  for (size_t dim = 0; dim < runs.size(); ++dim) {
    std::vector<at::Tensor> parts;
    for (auto& run : runs[dim]) parts.push_back(tensor.narrow(dim, run.source, run.size));
    tensor = parts.size() == 1 ? parts[0] : at::cat(parts, dim);
  }
  return tensor;
}

// One flat buffer of the pieces, in order. A single contiguous piece is used as it is.
at::Tensor pack(const std::vector<at::Tensor>& pieces, const at::Tensor& like) {
  if (pieces.size() == 1 && pieces[0].is_contiguous()) return pieces[0].view({-1});
  int64_t total = 0;
  for (auto& piece : pieces) total += piece.numel();
  auto flat = at::empty({total}, like.options());
  total = 0;
  for (auto& piece : pieces) {
    flat.narrow(0, total, piece.numel()).view(piece.sizes()).copy_(piece);
    total += piece.numel();
  }
  return flat;
}

// Whether the elements of a piece stand one behind the other in a target of this shape, from `offset` on.
bool stands_flat(const std::vector<Runs>& piece, c10::ArrayRef<int64_t> target, int64_t offset) {
  int64_t stride = 1, begin = 0;
  bool whole_behind = true;  // all dims behind this one are whole, so one run of this dim is one run of memory
  for (size_t dim = target.size(); dim-- > 0; stride *= target[dim]) {
    if (piece[dim].size() != 1 || (!whole_behind && piece[dim][0].size != 1)) return false;
    begin += piece[dim][0].target * stride;
    whole_behind = whole_behind && piece[dim][0].size == target[dim];
  }
  return begin == offset;
}

bool stand_flat(const std::vector<std::vector<Runs>>& pieces, const std::vector<int64_t>& counts,
                c10::ArrayRef<int64_t> target) {
  int64_t offset = 0;
  for (size_t member = 0; member < pieces.size(); offset += counts[member++]) {
    if (counts[member] && !stands_flat(pieces[member], target, offset)) return false;
  }
  return true;
}

// Every member's shard, laid into the place where the member's coordinate puts it.
Finish all_gather(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  auto dim = cut_dim(step.from->placements()[step.axes[0]]);
  bool in_order = is_shard(step.from->placements()[step.axes[0]]);
  struct Geometry {
    c10::SmallVector<int64_t, 5> whole;
    std::vector<int64_t> extents;  // of each member's shard along dim
    std::vector<Intervals> held;   // where each lies in the whole, for strided shards
  };
  auto geometry = std::make_shared<std::vector<Geometry>>();
  Counts counts;
  Shards mine, all;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto coordinate = mesh.slots()[slot].coordinate;
    Geometry g{local_shape(*step.to, shape, coordinate), {}, {}};
    auto& count = counts.emplace_back();
    auto outer = intervals_of(*step.to, dim, shape[dim], coordinate);
    for (int64_t j = 0; j < axis.size(); ++j) {
      coordinate[step.axes[0]] = j;
      auto held = intervals_of(*step.from, dim, shape[dim], coordinate);
      int64_t extent = 0;
      for (auto& piece : held) extent += piece.size();
      g.extents.push_back(extent);
      if (!in_order) g.held.push_back(std::move(held));
      count.push_back(numel_of(with_size(g.whole, dim, extent)));
    }
    mine.push_back(shards[slot].contiguous().view({-1}));
    all.push_back(at::empty({numel_of(g.whole)}, shards[slot].options()));
    geometry->push_back(std::move(g));
  }
  Wait wait;
  axis.all_gather(mine, all, counts, async ? &wait : nullptr);
  return [=, &mesh, shape = shape.vec()] {
    if (wait) wait();
    Shards result;
    for (size_t slot = 0; slot < all.size(); ++slot) {
      auto& g = (*geometry)[slot];
      bool flat = in_order && numel_of(c10::ArrayRef<int64_t>(g.whole).slice(0, dim)) == 1;
      if (flat) {  // the parts already stand one behind the other
        result.push_back(all[slot].view(g.whole));
        continue;
      }
      auto target = at::empty(g.whole, all[slot].options());
      auto outer = intervals_of(*step.to, dim, shape[dim], mesh.slots()[slot].coordinate);
      int64_t offset = 0, begin = 0;
      for (size_t j = 0; j < g.extents.size(); ++j) {
        auto part_shape = with_size(g.whole, dim, g.extents[j]);
        auto part = all[slot].narrow(0, offset, numel_of(part_shape)).view(part_shape);
        offset += part.numel();
        if (in_order) {
          target.narrow(dim, begin, g.extents[j]).copy_(part);
          begin += g.extents[j];
          continue;
        }
        for (auto& run : overlap(g.held[j], outer)) {
          target.narrow(dim, run.target, run.size).copy_(part.narrow(dim, run.source, run.size));
        }
      }
      result.push_back(target);
    }
    return result;
  };
}

// Where axes agree on a copy, a member takes it from the one that shares its coordinates on the replicated axes.
bool offers(const Layout& from, c10::ArrayRef<int64_t> axes, c10::ArrayRef<int64_t> source,
            c10::ArrayRef<int64_t> target) {
  for (auto axis : axes) {
    if (is_replicate(from.placements()[axis]) && source[axis] != target[axis]) return false;
  }
  return true;
}

// Each pair of members exchanges exactly what one has and the other needs.
Finish all_to_all(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  Shards send, receive;
  Counts send_counts, receive_counts;
  auto incoming = std::make_shared<std::vector<std::vector<std::vector<Runs>>>>();  // [slot][member] -> runs per dim
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto& me = mesh.slots()[slot].coordinate;
    std::vector<at::Tensor> pieces;
    auto &out = send_counts.emplace_back(), &in = receive_counts.emplace_back();
    auto& runs_in = incoming->emplace_back();
    int64_t total = 0;
    for (int64_t member = 0; member < axis.size(); ++member) {
      auto peer = *mesh.coordinate_of(axis.line().ranks[slot][member]);
      std::vector<Runs> to_peer, from_peer;
      if (offers(*step.from, step.axes, me, peer)) to_peer = overlap(*step.from, me, *step.to, peer, shape);
      if (offers(*step.from, step.axes, peer, me)) from_peer = overlap(*step.from, peer, *step.to, me, shape);
      out.push_back(count_of(to_peer));
      in.push_back(count_of(from_peer));
      total += in.back();
      if (out.back()) pieces.push_back(extract(shards[slot], to_peer));
      runs_in.push_back(std::move(from_peer));
    }
    send.push_back(pack(pieces, shards[slot]));
    receive.push_back(at::empty({total}, shards[slot].options()));
  }
  Wait wait;
  axis.all_to_all(send, send_counts, receive, receive_counts, async ? &wait : nullptr);
  return [=, &mesh, shape = shape.vec()] {
    if (wait) wait();
    Shards result;
    for (size_t slot = 0; slot < receive.size(); ++slot) {
      auto extent = local_shape(*step.to, shape, mesh.slots()[slot].coordinate);
      TORCH_INTERNAL_ASSERT(receive[slot].numel() == numel_of(extent), "the members do not hold all that is needed");
      if (stand_flat((*incoming)[slot], receive_counts[slot], extent)) {
        result.push_back(receive[slot].view(extent));
        continue;
      }
      auto target = at::empty(extent, receive[slot].options());
      int64_t offset = 0;
      for (size_t member = 0; member < (*incoming)[slot].size(); ++member) {
        auto& runs = (*incoming)[slot][member];
        auto count = receive_counts[slot][member];
        if (!count) continue;
        std::vector<int64_t> extents;
        for (auto& along : runs) {
          int64_t extent = 0;
          for (auto& run : along) extent += run.size;
          extents.push_back(extent);
        }
        place(target, receive[slot].narrow(0, offset, count).view(extents), runs);
        offset += count;
      }
      result.push_back(target);
    }
    return result;
  };
}

Shards reduce_scatter(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  auto op = std::get<Partial>(step.from->placements()[step.axes[0]]).op;
  auto& cut = step.to->placements()[step.axes[0]];
  Shards send;
  Counts counts;
  for (auto& shard : shards) {
    std::vector<at::Tensor> pieces;
    auto& count = counts.emplace_back();
    for (int64_t j = 0; j < axis.size(); ++j) {
      pieces.push_back(part_of(shard, cut, axis.size(), j));
      count.push_back(pieces.back().numel());
    }
    bool in_order = is_shard(cut) && numel_of(shard.sizes().slice(0, cut_dim(cut))) == 1 && shard.is_contiguous();
    send.push_back(in_order ? shard.view({-1}) : pack(pieces, shard));
  }
  auto reduced = axis.reduce_scatter(send, counts, op);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(reduced[slot].view(local_shape(*step.to, shape, mesh.slots()[slot].coordinate)));
  }
  return result;
}

// Bytes travel, so what memory holds must be the values: a lazy conjugate or negative is carried out first.
Shards as_stored(const Shards& shards) {
  Shards result = shards;
  for (auto& shard : result) {
    if (shard.is_conj() || shard.is_neg()) shard = shard.resolve_conj().resolve_neg();
  }
  return result;
}

Finish begin(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto done = [](Shards result) -> Finish { return [result] { return result; }; };
  switch (step.kind) {
    case StepKind::narrow: return done(narrow(step, shards));
    case StepKind::pend: return done(pend(step, shards));
    case StepKind::all_gather: return all_gather(step, shards, shape, async);
    case StepKind::all_to_all: return all_to_all(step, shards, shape, async);
    case StepKind::reduce_scatter: return done(reduce_scatter(step, shards, shape));
    case StepKind::all_reduce: break;
  }
  Wait wait;
  auto op = std::get<Partial>(step.from->placements()[step.axes[0]]).op;
  auto result = Axis::of(step.from->mesh(), step.axes).all_reduce(shards, op, async ? &wait : nullptr);
  return [wait, result] {
    if (wait) wait();
    return result;
  };
}

}  // namespace

Shards run(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  auto now = plan.steps.empty() ? shards : as_stored(shards);
  for (auto& step : plan.steps) now = begin(step, now, shape, false)();
  return now;
}

std::function<Shards()> run_async(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  if (plan.steps.empty()) return [shards] { return shards; };
  auto now = as_stored(shards);
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) now = begin(plan.steps[i], now, shape, false)();
  return begin(plan.steps.back(), now, shape, true);
}

at::Tensor part_of(const at::Tensor& tensor, const Placement& placement, int64_t parts, int64_t index) {
  auto dim = cut_dim(placement);
  auto extent = tensor.size(dim);
  auto* strided = std::get_if<StridedShard>(&placement);
  if (!strided) {
    auto part = chunk_of(extent, parts, index);
    return tensor.narrow(dim, part.begin, part.size());
  }
  std::vector<at::Tensor> pieces;
  for (int64_t b = 0; b < strided->split; ++b) {
    auto block = chunk_of(extent, strided->split, b);
    auto part = chunk_of(block.size(), parts, index);
    if (part.size()) pieces.push_back(tensor.narrow(dim, block.begin + part.begin, part.size()));
  }
  return pieces.empty() ? tensor.narrow(dim, 0, 0) : pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

at::Tensor shard_of(const at::Tensor& whole, const Layout& layout, c10::ArrayRef<int64_t> coordinate) {
  auto result = whole;
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    auto& placement = layout.placements()[axis];
    if (auto* partial = std::get_if<Partial>(&placement)) result = share_of(result, partial->op, coordinate[axis]);
    if (cut_dim(placement) < 0) continue;
    result = part_of(result, placement, layout.mesh().shape()[axis], coordinate[axis]);
  }
  return result;
}

}  // namespace intarsia
