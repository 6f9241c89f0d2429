#include "intarsia/redistribute/run.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "intarsia/comm/collective.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/core/held.h"
#include "intarsia/redistribute/common_runs.h"
#include "intarsia/redistribute/exchange.h"

namespace intarsia {
namespace {

using Finish = std::function<Shards()>;

Shards pend(const Step& step, const Shards& shards) {
  auto op = *pending_op(step.to->placements()[step.axes[0]]);
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

// A shard in the making: its shape and, for each of the pieces that its slot gets, where that stands in it, dim by dim.
struct Target {
  c10::DimVector shape;
  std::vector<std::vector<Runs>> places;
};

bool stand_flat(const Target& target) {
  int64_t offset = 0;
  for (auto& piece : target.places) {
    auto count = count_of(piece);
    if (count && !stands_flat(piece, target.shape, offset)) return false;
    offset += count;
  }
  return true;
}

// The shards that the pieces make. Where they stand in the shard as they were received, nothing is copied.
Finish lay_out(Exchanged exchanged, std::vector<Target> targets) {
  return [exchanged = std::move(exchanged), targets = std::move(targets)] {
    if (exchanged.wait) exchanged.wait();
    Shards result;
    for (size_t slot = 0; slot < targets.size(); ++slot) {
      auto& target = targets[slot];
      auto& flat = exchanged.received[slot];
      TORCH_INTERNAL_ASSERT(flat.numel() == c10::multiply_integers(target.shape), "the members do not hold all that is needed");
      if (stand_flat(target)) {
        result.push_back(flat.view(target.shape));
        continue;
      }
      auto& shard = result.emplace_back(at::empty(target.shape, flat.options()));
      auto pieces = exchanged.pieces(slot);
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].numel()) place(shard, pieces[i], target.places[i]);
      }
    }
    return result;
  };
}

// Every member's shard, laid into the place where the member's coordinate puts it.
Finish all_gather(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape, bool async) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  auto dim = cut_dim(step.from->placements()[step.axes[0]]);
  std::vector<std::vector<c10::DimVector>> shapes;
  std::vector<Target> targets;
  for (auto& slot : mesh.slots()) {
    auto& pieces = shapes.emplace_back();
    auto& target = targets.emplace_back(Target{local_shape(*step.to, shape, slot.coordinate), {}});
    pieces.reserve(axis.size());
    target.places.reserve(axis.size());
    std::vector<Runs> whole;
    whole.reserve(shape.size());
    for (auto extent : target.shape) whole.push_back({{0, 0, extent}});
    auto mine = intervals_of(*step.to, dim, shape[dim], slot.coordinate);
    for (auto& held : held_by_members(*step.from, dim, shape[dim], step.axes, slot.coordinate)) {
      pieces.push_back(with_size(target.shape, dim, extent_of(held)));
      target.places.emplace_back(whole)[dim] = common_runs(held, mine);
    }
  }
  return lay_out(gather(axis, shards, std::move(shapes), async), std::move(targets));
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
  auto given = [&](c10::ArrayRef<int64_t> source, c10::ArrayRef<int64_t> target) {
    if (!offers(*step.from, step.axes, source, target)) return std::vector<Runs>();
    return common_runs(*step.from, source, *step.to, target, shape);
  };
  std::vector<Trade> trades;
  std::vector<Target> targets;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    auto& me = mesh.slots()[slot].coordinate;
    auto& trade = trades.emplace_back(axis, shards[slot].options());
    auto& target = targets.emplace_back(Target{local_shape(*step.to, shape, me), {}});
    for (int64_t member = 0; member < axis.size(); ++member) {
      auto peer = *mesh.coordinate_of(axis.line().ranks[slot][member]);
      if (auto runs = given(me, peer); !runs.empty()) trade.give(member, extract(shards[slot], runs));
      if (auto runs = given(peer, me); !runs.empty()) {
        trade.get(member, shape_of(runs));
        target.places.push_back(std::move(runs));
      }
    }
  }
  return lay_out(exchange(axis, std::move(trades), async), std::move(targets));
}

Shards reduce_scatter(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  auto op = *pending_op(step.from->placements()[step.axes[0]]);
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
    send.push_back(packed(pieces, shard.options()));
  }
  auto reduced = axis.reduce_scatter(send, counts, op);
  Shards result;
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    result.push_back(reduced[slot].view(local_shape(*step.to, shape, mesh.slots()[slot].coordinate)));
  }
  return result;
}

Shards apart(const Shards& shards) {
  Shards result;
  for (auto& shard : shards) result.push_back(shard.clone(at::MemoryFormat::Contiguous));
  return result;
}

Finish all_reduce(const Step& step, const Shards& shards, bool async) {
  Wait wait;
  auto op = *pending_op(step.from->placements()[step.axes[0]]);
  int64_t averaged = 1;  // members of the axes along which a sum is divided by their number
  bool mixed = false;
  for (auto axis : step.axes) {
    auto own = *pending_op(step.from->placements()[axis]);
    if (own == ReduceOp::avg) averaged *= step.from->mesh().size(axis);
    mixed = mixed || own != op;
  }
  if (mixed && !shards.empty()) check_reducible("all_reduce", shards[0].scalar_type(), ReduceOp::avg);
  auto mine = async ? apart(shards) : shards;
  auto result = Axis::of(step.from->mesh(), step.axes).all_reduce(mine, mixed ? ReduceOp::sum : op, async ? &wait : nullptr);
  return [wait, result, divisor = mixed ? averaged : 1] {
    if (wait) wait();
    at::NoGradGuard no_grad;
    for (auto& sum : result) {
      if (divisor != 1) sum.div_(divisor);
    }
    return result;
  };
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
