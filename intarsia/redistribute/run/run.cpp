#include "intarsia/redistribute/run/run.h"

#include <map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/core/held.h"
#include "intarsia/redistribute/common_runs.h"
#include "intarsia/redistribute/run/exchange.h"
#include "intarsia/simulation/moves/simulated_all_to_all.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

using Finish = std::function<Shards()>;

Shards pend(const Step& step, const Shards& shards) {
  auto op = collective_op(step.to->placements()[step.axes[0]]);
  auto& axis = Axis::of(step.from->mesh(), step.axes);
  auto has = [&](size_t slot) { return holds_value(op, axis.position(slot)); };
  auto same = [&](size_t i, size_t j) { return has(i) == has(j) && are_twins(shards[i], shards[j]); };
  auto first = first_alike(shards.size(), [&](size_t i) { return twin_hash(shards[i]) + has(i); }, same);
  return made_once(first, shards, [&](size_t slot) { return share_of(shards[slot], op, axis.position(slot)); });
}

Shards narrow(const Step& step, const Shards& shards) {
  auto& axis = Axis::of(step.from->mesh(), step.axes);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(part_of(shards[slot], step.to->placements()[step.axes[0]], axis.size(), axis.position(slot)));
  }
  return result;
}

// A shard to be filled: its shape and, for each piece that its slot receives, the runs it fills, dim by dim.
struct Target {
  c10::DimVector shape;
  std::vector<std::vector<Runs>> places;
  bool stands_flat = false;  // the pieces, one after the other, are the shard
};
using TargetPtr = std::shared_ptr<const Target>;

TargetPtr finished(Target target) {
  int64_t offset = 0;
  target.stands_flat = true;
  for (auto& piece : target.places) {
    auto count = count_of(piece);
    target.stands_flat = target.stands_flat && (!count || stands_flat(piece, target.shape, offset));
    offset += count;
  }
  return std::make_shared<const Target>(std::move(target));
}

at::Tensor laid_out(const Exchanged& exchanged, size_t slot, const Target& target) {
  auto& flat = exchanged.received[slot];
  TORCH_INTERNAL_ASSERT(flat.numel() == c10::multiply_integers(target.shape),
                        "the members do not hold all that is needed");
  if (target.stands_flat) return flat.view(target.shape);
  auto shard = at::empty(target.shape, flat.options());
  auto pieces = exchanged.pieces(slot);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].numel()) place(shard, pieces[i], target.places[i]);
  }
  return shard;
}

// The shards that the pieces make. If they are contiguous as they were received, nothing is copied.
Finish lay_out(Exchanged exchanged, std::vector<TargetPtr> targets) {
  return [exchanged = std::move(exchanged), targets = std::move(targets)] {
    if (exchanged.wait) exchanged.wait();
    auto& flat = exchanged.received;
    auto hash = [&](size_t i) { return twin_hash(flat[i]) + reinterpret_cast<uintptr_t>(targets[i].get()); };
    auto same = [&](size_t i, size_t j) { return targets[i] == targets[j] && are_twins(flat[i], flat[j]); };
    auto first = first_alike(targets.size(), hash, same);
    return made_once(first, flat, [&](size_t slot) { return laid_out(exchanged, slot, *targets[slot]); });
  };
}

// All members of a line gather the same, so it is computed once.
struct Gathered {
  PieceShapes shapes;
  TargetPtr target;
};

// Where the shard of every member goes in the result of a gather, by the member's coordinate.
Gathered gathered_at(const Step& step, c10::ArrayRef<int64_t> shape, const Slot& slot) {
  auto dim = cut_dim(step.from->placements()[step.axes[0]]);
  auto pieces = std::make_shared<std::vector<c10::DimVector>>();
  Target target{local_shape(*step.to, shape, slot.coordinate), {}};
  std::vector<Runs> whole;
  whole.reserve(shape.size());
  for (auto extent : target.shape) whole.push_back({{0, 0, extent}});
  auto mine = intervals_of(*step.to, dim, shape[dim], slot.coordinate);
  for (auto& held : held_by_members(*step.from, dim, shape[dim], step.axes, slot.coordinate)) {
    pieces->push_back(with_size(target.shape, dim, extent_of(held)));
    target.places.emplace_back(whole)[dim] = common_runs(held, mine);
  }
  return {std::move(pieces), finished(std::move(target))};
}

Finish all_gather(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto& axis = Axis::of(step.from->mesh(), step.axes);
  std::vector<PieceShapes> shapes;
  std::vector<TargetPtr> targets;
  std::map<std::vector<int64_t>, Gathered> known;  // by the coordinate of the line's first member
  for (auto& slot : step.from->mesh().slots()) {
    auto line = slot.coordinate;
    for (auto a : step.axes) line[a] = 0;
    auto& gathered = known[line];
    if (!gathered.target) gathered = gathered_at(step, shape, slot);
    shapes.push_back(gathered.shapes);
    targets.push_back(gathered.target);
  }
  return lay_out(gather(axis, shards, std::move(shapes), async), std::move(targets));
}

// Where axes hold copies, a member takes it from the one that shares its coordinates on the replicated axes.
bool offers(const Layout& from, c10::ArrayRef<int64_t> axes, c10::ArrayRef<int64_t> source,
            c10::ArrayRef<int64_t> target) {
  for (auto axis : axes) {
    if (is_replicate(from.placements()[axis]) && source[axis] != target[axis]) return false;
  }
  return true;
}

// Each pair of members exchanges exactly what one has and the other needs. A simulation has the data of both: see Note
// [Simulated all-to-all].
Finish all_to_all(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto& mesh = step.from->mesh();
  if (shards.size() > 1) return simulated_all_to_all(step, shards, shape, async);
  auto& axis = Axis::of(mesh, step.axes);
  if (shards.empty()) return lay_out(exchange(axis, {}, async), {});  // a rank outside of the mesh
  auto given = [&](c10::ArrayRef<int64_t> source, c10::ArrayRef<int64_t> target) {
    if (!offers(*step.from, step.axes, source, target)) return std::vector<Runs>();
    return common_runs(*step.from, source, *step.to, target, shape);
  };
  auto& me = mesh.slots()[0].coordinate;
  Trade trade(axis, shards[0].options());
  Target target{local_shape(*step.to, shape, me), {}};
  for (int64_t member = 0; member < axis.size(); ++member) {
    auto peer = *mesh.coordinate_of(axis.line().ranks[0][member]);
    if (auto runs = given(me, peer); !runs.empty()) trade.give(member, extract(shards[0], runs));
    if (auto runs = given(peer, me); !runs.empty()) {
      trade.get(member, shape_of(runs));
      target.places.push_back(std::move(runs));
    }
  }
  return lay_out(exchange(axis, {std::move(trade)}, async), {finished(std::move(target))});
}

// The reduction that one collective runs along the axes of a step.
struct MergedOp {
  ReduceOp op;
  int64_t divisor = 1;  // if some axes sum and others average: the members of the latter

  MergedOp(const Step& step, const Shards& shards) : op(collective_op(step.from->placements()[step.axes[0]])) {
    int64_t averaged = 1;
    bool mixed = false;
    for (auto axis : step.axes) {
      auto own = collective_op(step.from->placements()[axis]);
      if (own == ReduceOp::avg) averaged *= step.from->mesh().size(axis);
      mixed = mixed || own != op;
    }
    if (!mixed) return;
    if (!shards.empty())
      check_reducible(step.kind == StepKind::all_reduce ? "all_reduce" : "reduce_scatter", shards[0].scalar_type(),
                      ReduceOp::avg);
    op = ReduceOp::sum;
    divisor = averaged;
  }

  void divide(const Shards& sums) const {
    at::NoGradGuard no_grad;
    if (divisor != 1) write_once(sums, {}, [&](size_t slot) { sums[slot].div_(divisor); });
  }
};

std::vector<int64_t> counts_of_parts(const at::Tensor& shard, const Placement& cut, int64_t parts) {
  std::vector<int64_t> counts;
  auto dim = cut_dim(cut), length = shard.size(dim), others = length ? shard.numel() / length : 0;
  for (int64_t j = 0; j < parts; ++j) counts.push_back(others * extent_of(cut_once({{0, length}}, cut, parts, j)));
  return counts;
}

// Splits a shard along all axes of a step but the last, and passes on each member's part with the placement along the
// last.
template <class Take>
void each_part(const Step& step, const at::Tensor& shard, Take take, size_t k = 0) {
  auto& cut = step.to->placements()[step.axes[k]];
  auto parts = step.to->mesh().size(step.axes[k]);
  if (k + 1 == step.axes.size()) return take(shard, cut, parts);
  for (int64_t j = 0; j < parts; ++j) each_part(step, part_of(shard, cut, parts, j), take, k + 1);
}

// The parts of all members, in the order of the line.
at::Tensor packed_parts(const Step& step, const at::Tensor& shard) {
  std::vector<at::Tensor> all;
  each_part(step, shard, [&](const at::Tensor& part, const Placement& cut, int64_t parts) {
    for (auto& one : parts_in_order(part, cut, parts)) all.push_back(std::move(one));
  });
  return packed(all, shard.options());
}

std::vector<int64_t> counts_of_members(const Step& step, const at::Tensor& shard) {
  std::vector<int64_t> all;
  each_part(step, shard, [&](const at::Tensor& part, const Placement& cut, int64_t parts) {
    for (auto count : counts_of_parts(part, cut, parts)) all.push_back(count);
  });
  return all;
}

Shards reduce_scatter(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  MergedOp merged(step, shards);
  Counts counts;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    bool as_before = slot > 0 && shards[slot].sizes() == shards[slot - 1].sizes();
    counts.push_back(as_before ? counts.back() : counts_of_members(step, shards[slot]));
  }
  auto send = made_once(shards, [&](auto& shard) { return packed_parts(step, shard); });
  auto reduced = axis.reduce_scatter(send, counts, merged.op);
  merged.divide(reduced);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(reduced[slot].view(local_shape(*step.to, shape, mesh.slots()[slot].coordinate)));
  }
  return result;
}

Shards apart(const Shards& shards) {
  return made_once(shards, [](auto& shard) { return shard.clone(at::MemoryFormat::Contiguous); });
}

Finish all_reduce(const Step& step, const Shards& shards, bool async) {
  Wait wait;
  MergedOp merged(step, shards);
  auto mine = async ? apart(shards) : shards;
  auto result = Axis::of(step.from->mesh(), step.axes).all_reduce(mine, merged.op, async ? &wait : nullptr);
  return [wait, result, merged] {
    if (wait) wait();
    merged.divide(result);
    return result;
  };
}

// Memory must hold the values, since bytes are sent: a lazy conjugate or negative is computed first.
Shards as_stored(const Shards& shards) {
  auto is_lazy = [](auto& shard) { return shard.is_conj() || shard.is_neg(); };
  if (std::none_of(shards.begin(), shards.end(), is_lazy)) return shards;
  return made_once(shards, [](auto& shard) { return shard.resolve_conj().resolve_neg(); });
}

Finish begin_sums(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  MoveScope move(step.from->placements(), step.to->placements(), step.axes);
  auto done = [](Shards result) -> Finish { return [result] { return result; }; };
  switch (step.kind) {
    case StepKind::narrow: return done(async ? apart(narrow(step, shards)) : narrow(step, shards));
    case StepKind::pend: return done(async ? apart(pend(step, shards)) : pend(step, shards));
    case StepKind::all_gather: return all_gather(step, shards, shape, async);
    case StepKind::all_to_all: return all_to_all(step, shards, shape, async);
    case StepKind::reduce_scatter: return done(reduce_scatter(step, shards, shape));
    case StepKind::all_reduce: return all_reduce(step, shards, async);
  }
  TORCH_INTERNAL_ASSERT(false);
}

// The order of the norm that a step settles, if it settles one.
std::optional<double> settles_norm(const Step& step) {
  if (step.kind != StepKind::all_reduce && step.kind != StepKind::reduce_scatter) return std::nullopt;
  return norm_order(step.from->placements()[step.axes[0]]);
}

// |x|^order, in double: powers soon leave the range of smaller types.
Shards raised(const Shards& shards, double order) {
  at::NoGradGuard no_grad;
  return made_once(shards, [&](auto& shard) {
    auto x = at::abs(shard).to(at::kDouble);
    return order == 2 ? at::mul(x, x) : at::pow(x, order);
  });
}

Finish begin(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  if (auto order = settles_norm(step)) {
    auto type = shards.empty() ? at::kFloat : shards[0].scalar_type();
    auto finish = begin_sums(step, raised(shards, *order), shape, async);
    return [finish, order = *order, type] {
      auto roots = raised(finish(), 1 / order);
      return made_once(roots, [&](auto& root) { return root.to(type); });
    };
  }
  return begin_sums(step, shards, shape, async);
}

}  // namespace

Shards run(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  ShapeScope scope(shape);
  auto now = plan.steps.empty() ? shards : as_stored(shards);
  for (auto& step : plan.steps) now = begin(step, now, shape, false)();
  return now;
}

std::function<Shards()> run_async(const Plan& plan, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  if (plan.steps.empty()) return [result = apart(shards)] { return result; };
  ShapeScope scope(shape);
  auto now = as_stored(shards);
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) now = begin(plan.steps[i], now, shape, false)();
  return begin(plan.steps.back(), now, shape, true);
}

}  // namespace intarsia
