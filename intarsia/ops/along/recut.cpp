#include "intarsia/ops/along/recut.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/redistribute/run/exchange.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

struct RecutSteps {
  // Local positions, in order. Most are one run, which is stored as such.
  struct Positions {
    int64_t first = 0, count = 0;
    std::vector<int64_t> all;  // empty if they are a run

    void add(int64_t position) {
      bool goes_on = all.empty() && (count == 0 || position == first + count);
      if (count == 0) first = position;
      if (!goes_on && all.empty()) {
        all.resize(count);
        std::iota(all.begin(), all.end(), first);
      }
      if (!goes_on) all.push_back(position);
      ++count;
    }
  };

  // What one member sends another of one tensor: its positions at the sender and at the receiver.
  struct Gift {
    Positions from, to;
  };
  struct Parcel {
    std::vector<Gift> gifts;  // per tensor
  };
  struct Member {
    std::vector<Parcel> given, taken;  // per other member; empty for members that no slot is
  };
  struct Part {
    int64_t member;              // the slot's place on its line
    std::vector<int64_t> shape;  // of its share of the result
  };

  const Layout* layout = nullptr;
  const Axis* axis = nullptr;  // all that shard the dim
  int64_t dim = 0;
  std::vector<int64_t> shape;  // of the result
  bool moves = false;          // whether any member needs what another holds
  std::vector<Member> members;
  std::vector<Part> parts;  // per slot
};

namespace {

using Positions = RecutSteps::Positions;

// Which member holds a position of a dim, and where.
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

void add_to(RecutSteps::Parcel& parcel, int64_t tensor, int64_t from, int64_t to) {
  parcel.gifts[tensor].from.add(from);
  parcel.gifts[tensor].to.add(to);
}

void plan_parts(RecutSteps& steps, size_t tensors) {
  auto& slots = steps.layout->mesh().slots();
  RecutSteps::Parcel none{std::vector<RecutSteps::Gift>(tensors)};
  for (size_t slot = 0; slot < steps.axis->slot_count(); ++slot) {
    auto shape = local_shape(*steps.layout, steps.shape, slots[slot].coordinate);
    auto& part = steps.parts.emplace_back(RecutSteps::Part{steps.axis->position(slot), {shape.begin(), shape.end()}});
    auto& member = steps.members[part.member];
    member.given.assign(steps.members.size(), none);
    member.taken = member.given;
  }
}

void plan_gifts(RecutSteps& steps, const std::vector<int64_t>& extents, const std::vector<Source>& sources) {
  std::vector<std::vector<Holder>> holders;
  for (auto extent : extents) holders.push_back(holders_of(held_by_members(*steps.layout, steps.dim, extent), extent));
  auto wanted = held_by_members(*steps.layout, steps.dim, sources.size());
  for (size_t taker = 0; taker < wanted.size(); ++taker) {
    int64_t place = 0;
    for (auto& run : wanted[taker]) {
      for (auto p = run.begin; p < run.end; ++p, ++place) {
        auto& source = sources[p];
        if (source.tensor < 0) continue;
        auto& holder = holders[source.tensor][source.position];
        auto &given = steps.members[holder.member].given, &taken = steps.members[taker].taken;
        if (!given.empty()) add_to(given[taker], source.tensor, holder.local, place);
        if (!taken.empty()) add_to(taken[holder.member], source.tensor, holder.local, place);
        steps.moves = steps.moves || holder.member != static_cast<int64_t>(taker);
      }
    }
  }
}

at::Tensor take(const at::Tensor& tensor, int64_t dim, const Positions& positions) {
  if (positions.all.empty()) return tensor.narrow(dim, positions.first, positions.count);
  return tensor.index_select(dim, at::tensor(positions.all, tensor.options().dtype(at::kLong)));
}

void put(const at::Tensor& target, int64_t dim, const Positions& positions, const at::Tensor& piece) {
  if (positions.all.empty()) {
    target.narrow(dim, positions.first, positions.count).copy_(piece);
  } else {
    at::Tensor(target).index_copy_(dim, at::tensor(positions.all, target.options().dtype(at::kLong)), piece);
  }
}

using Locals = std::vector<Shards>;  // [tensor][slot]

Locals locals_of(const std::vector<at::Tensor>& tensors) {
  Locals locals;
  for (auto& tensor : tensors) {
    auto& shards = locals.emplace_back(body_of(tensor).shards());
    for (auto& shard : shards) shard = shard.resolve_conj().resolve_neg();
  }
  return locals;
}

// A slot's share of the result with what comes from its own tensors; zero elsewhere.
at::Tensor own_share(const RecutSteps& steps, const Locals& locals, size_t slot) {
  auto& part = steps.parts[slot];
  auto result = at::zeros(part.shape, locals[0][slot].options());
  auto& gifts = steps.members[part.member].given[part.member].gifts;
  for (size_t t = 0; t < gifts.size(); ++t) {
    if (gifts[t].from.count) put(result, steps.dim, gifts[t].to, take(locals[t][slot], steps.dim, gifts[t].from));
  }
  return result;
}

// Visits all other members and tensors, in the order in which their pieces are sent.
template <class Body>
void for_each_gift(const std::vector<RecutSteps::Parcel>& parcels, int64_t me, Body body) {
  for (int64_t other = 0; other < static_cast<int64_t>(parcels.size()); ++other) {
    for (size_t t = 0; other != me && t < parcels[other].gifts.size(); ++t) {
      if (parcels[other].gifts[t].from.count) body(other, t, parcels[other].gifts[t]);
    }
  }
}

Trade trade_of(const RecutSteps& steps, const Locals& locals, size_t slot) {
  auto& part = steps.parts[slot];
  auto& member = steps.members[part.member];
  Trade trade(*steps.axis, locals[0][slot].options());
  for_each_gift(member.given, part.member, [&](int64_t other, size_t t, auto& gift) {
    trade.give(other, take(locals[t][slot], steps.dim, gift.from));
  });
  for_each_gift(member.taken, part.member, [&](int64_t other, size_t, auto& gift) {
    auto shape = part.shape;
    shape[steps.dim] = gift.to.count;
    trade.get(other, shape);
  });
  return trade;
}

void take_from_others(const RecutSteps& steps, const Locals& locals, const Shards& results) {
  std::vector<Trade> trades;
  for (size_t slot = 0; slot < results.size(); ++slot) trades.push_back(trade_of(steps, locals, slot));
  auto exchanged = exchange(*steps.axis, std::move(trades));
  for (size_t slot = 0; slot < results.size(); ++slot) {
    auto pieces = exchanged.pieces(slot);
    size_t next = 0;
    for_each_gift(steps.members[steps.parts[slot].member].taken, steps.parts[slot].member,
                  [&](int64_t, size_t, auto& gift) { put(results[slot], steps.dim, gift.to, pieces[next++]); });
  }
}

}  // namespace

RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<int64_t>& extents,
                     const std::vector<Source>& sources) {
  auto steps = std::make_shared<RecutSteps>();
  steps->layout = &layout;
  steps->axis = &Axis::of(layout.mesh(), axes_cutting(layout, dim));
  steps->dim = dim;
  steps->shape = shape.vec();
  steps->shape[dim] = sources.size();
  steps->members.resize(steps->axis->size());
  plan_parts(*steps, extents.size());
  plan_gifts(*steps, extents, sources);
  return steps;
}

RecutPlan plan_recut(const Layout& layout, at::IntArrayRef shape, int64_t dim, const std::vector<Source>& sources) {
  return plan_recut(layout, shape, dim, {shape[dim]}, sources);
}

at::Tensor recut(const RecutPlan& plan, const std::vector<at::Tensor>& tensors) {
  auto& steps = *plan;
  auto locals = locals_of(tensors);
  Shards results;
  for (size_t slot = 0; slot < steps.parts.size(); ++slot) results.push_back(own_share(steps, locals, slot));
  if (steps.moves && !results.empty()) take_from_others(steps, locals, results);
  return wrap(std::move(results), steps.layout, steps.shape, c10::contiguous_strides(steps.shape), tensors[0].dtype());
}

at::Tensor recut(const std::vector<at::Tensor>& tensors, int64_t dim, const std::vector<Source>& sources) {
  std::vector<int64_t> extents;
  for (auto& tensor : tensors) extents.push_back(tensor.size(dim));
  return recut(plan_recut(*body_of(tensors[0]).layout, tensors[0].sizes(), dim, extents, sources), tensors);
}

Shards gather_along(const Axis& axis, const Shards& pieces, int64_t dim, const std::vector<int64_t>& extents) {
  if (pieces.empty()) return {};
  std::vector<PieceShapes> shapes;
  for (auto& piece : pieces) {
    auto of_slot = std::make_shared<std::vector<c10::DimVector>>();
    for (auto extent : extents) of_slot->emplace_back(piece.sizes())[dim] = extent;
    bool as_before = !shapes.empty() && *shapes.back() == *of_slot;
    shapes.push_back(as_before ? shapes.back() : of_slot);
  }
  auto gathered = gather(axis, pieces, std::move(shapes));
  auto& flat = gathered.received;
  auto same = [&](size_t i, size_t j) {
    return are_twins(flat[i], flat[j]) && *gathered.shapes[i] == *gathered.shapes[j];
  };
  auto first = first_alike(flat.size(), [&](size_t i) { return twin_hash(flat[i]); }, same);
  return made_once(first, flat, [&](size_t slot) { return at::cat(gathered.pieces(slot), dim); });
}

const Layout* without_cut(const Layout& layout, int64_t dim, bool removed) {
  auto placements = layout.placements();
  for (auto& p : placements) {
    auto own = cut_dim(p);
    if (own == dim)
      p = Replicate();
    else if (removed && own > dim)
      p = with_cut_dim(p, own - 1);
  }
  return layout.with(placements);
}

at::Tensor brought_to(const at::Tensor& tensor, const Layout* layout) {
  if (body_of(tensor).layout == layout) return tensor;
  return wrap(shards_in(tensor, layout), layout, tensor.sizes(), tensor.strides(), tensor.dtype());
}

}  // namespace intarsia
