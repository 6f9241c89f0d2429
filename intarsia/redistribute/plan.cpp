#include "intarsia/redistribute/plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <c10/util/Exception.h>

#include "intarsia/core/pending.h"

namespace intarsia {
namespace {

// Local work has a nominal price, so that doing nothing wins a tie.
constexpr double kLocalStep = 1;

struct Problem {
  c10::ArrayRef<int64_t> shape;
  int64_t element_size;
};

// Bytes of the largest shard (that of coordinate 0) in a layout.
double shard_bytes(const Layout& layout, const Problem& p) {
  double bytes = p.element_size;
  for (size_t dim = 0; dim < p.shape.size(); ++dim) {
    auto size = p.shape[dim];
    for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
      auto parts = layout.mesh().shape()[axis];
      if (cut_dim(layout.placements()[axis]) == static_cast<int64_t>(dim)) size = (size + parts - 1) / parts;
    }
    bytes *= size;
  }
  return bytes;
}

int64_t line_size(const Step& step) {
  int64_t size = 1;
  for (auto axis : step.axes) size *= step.from->mesh().shape()[axis];
  return size;
}

double cost_of(const Step& step, const Problem& p) {
  double n = line_size(step);
  if (n == 1 || step.kind == StepKind::narrow || step.kind == StepKind::pend) return kLocalStep;
  auto others = (n - 1) / n;
  auto link = link_cost(step.from->mesh(), step.axes);
  switch (step.kind) {
    case StepKind::all_reduce: return link.message() + link.of(2 * others * shard_bytes(*step.from, p));
    case StepKind::reduce_scatter: return link.message() + link.of(others * shard_bytes(*step.from, p));
    default: return link.message() + link.of(others * shard_bytes(*step.to, p));
  }
}

// An axis may start or stop sharding a dim only if no later axis shards it: later axes split what is left.
bool innermost(const Placements& placements, int64_t axis, int64_t dim) {
  for (size_t later = axis + 1; later < placements.size(); ++later) {
    if (cut_dim(placements[later]) == dim) return false;
  }
  return true;
}

template <class P>
concept Pending = std::same_as<P, Partial> || std::same_as<P, NormPartial> || std::same_as<P, MaskedPartial>;

// The kind of step between two placements, if there is one: one line per transition, and a missing pair does not
// compile.
struct Transition {
  using Kind = std::optional<StepKind>;

  // Between the kinds that are not pending.
  Kind operator()(const Replicate&, const Replicate&) const { return {}; }
  Kind operator()(const Replicate&, const Shard&) const { return StepKind::narrow; }
  Kind operator()(const Replicate&, const StridedShard&) const { return StepKind::narrow; }
  Kind operator()(const Shard&, const Replicate&) const { return StepKind::all_gather; }
  Kind operator()(const Shard&, const Shard&) const { return StepKind::all_to_all; }
  Kind operator()(const Shard&, const StridedShard&) const { return StepKind::all_to_all; }
  Kind operator()(const StridedShard&, const Replicate&) const { return StepKind::all_gather; }
  Kind operator()(const StridedShard&, const Shard&) const { return StepKind::all_to_all; }
  Kind operator()(const StridedShard&, const StridedShard&) const { return StepKind::all_to_all; }

  // The kinds that are pending all go and come alike.
  template <Pending P>
  Kind operator()(const Replicate&, const P&) const {
    return StepKind::pend;
  }
  template <Pending P>
  Kind operator()(const Shard&, const P&) const {
    return {};
  }  // goes by Replicate
  template <Pending P>
  Kind operator()(const StridedShard&, const P&) const {
    return {};
  }
  template <Pending P>
  Kind operator()(const P&, const Replicate&) const {
    return StepKind::all_reduce;
  }
  template <Pending P>
  Kind operator()(const P&, const Shard&) const {
    return StepKind::reduce_scatter;
  }
  template <Pending P>
  Kind operator()(const P&, const StridedShard&) const {
    return StepKind::reduce_scatter;
  }
  template <Pending P, Pending Q>
  Kind operator()(const P&, const Q&) const {
    return {};
  }  // one reduction is no other
};

// The step that takes `axis` directly to its goal, if that is legal in the present layout.
std::optional<Step> direct(const Layout* now, int64_t axis, const Placement& goal) {
  auto& from = now->placements()[axis];
  auto unnested = [&](const Placement& p) { return cut_dim(p) < 0 || innermost(now->placements(), axis, cut_dim(p)); };
  if (!unnested(from) || !unnested(goal)) return std::nullopt;
  auto kind = std::visit(Transition(), from, goal);
  if (!kind) return std::nullopt;
  auto placements = now->placements();
  placements[axis] = goal;
  // Other pending reductions run first: the ones that make a product pending would add up in a sum.
  if (kind == StepKind::pend && !have_one_value(placements)) return std::nullopt;
  return Step{*kind, {axis}, now, now->with(placements)};
}

// How many positions two shards have in common along one dim.
int64_t common_extent(const Intervals& a, const Intervals& b) {
  int64_t common = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    common += overlap(*i, *j).size();
    if (i->end < j->end)
      ++i;
    else
      ++j;
  }
  return common;
}

// What every rank holds before and after a step, in the dims whose sharding the step changes. In the others, all ranks
// of a line along the step's axes hold the same, before and after.
struct HeldByRanks {
  HeldByRanks(const Step& step, const Problem& p) {
    for (auto* layout : {step.from, step.to}) {
      for (auto axis : step.axes) {
        auto dim = cut_dim(layout->placements()[axis]);
        if (dim >= 0 && std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
      }
    }
    auto& mesh = step.from->mesh();
    for (int64_t position = 0; position < mesh.size(); ++position) {
      auto coordinate = mesh.coordinate_at(position);
      for (auto dim : dims) {
        before.push_back(intervals_of(*step.from, dim, p.shape[dim], coordinate));
        after.push_back(intervals_of(*step.to, dim, p.shape[dim], coordinate));
      }
    }
  }

  int64_t needed(int64_t position) const {
    int64_t count = 1;
    for (size_t k = 0; k < dims.size(); ++k) count *= extent_of(after[position * dims.size() + k]);
    return count;
  }
  int64_t offered(int64_t source, int64_t position) const {
    int64_t count = 1;
    for (size_t k = 0; k < dims.size() && count > 0; ++k) {
      count *= common_extent(before[source * dims.size() + k], after[position * dims.size() + k]);
    }
    return count;
  }

  c10::SmallVector<int64_t, 4> dims;
  std::vector<Intervals> before, after;  // [rank][dim]
};

// Whether every rank finds all it needs on its own line along `axes`.
bool closed(const Step& step, const Problem& p) {
  auto shape = step.from->mesh().shape();
  HeldByRanks held(step, p);
  for (int64_t position = 0; position < step.from->mesh().size(); ++position) {
    int64_t found = 0, need = held.needed(position);
    for (int64_t member = 0; member < line_size(step) && found < need; ++member) {
      bool twin = false;  // a copy of a shard that another member already offers
      int64_t source = position, rest = member;
      for (size_t k = step.axes.size(); k-- > 0;) {
        auto axis = step.axes[k];
        auto stride = c10::multiply_integers(shape.slice(axis + 1));
        auto here = position / stride % shape[axis], there = rest % shape[axis];
        source += (there - here) * stride;
        rest /= shape[axis];
        twin = twin || (is_replicate(step.from->placements()[axis]) && there != here);
      }
      if (!twin) found += held.offered(source, position);
    }
    if (found < need) return false;
  }
  return true;
}

// One all-to-all that brings the fewest axes to their goal, if nested shardings block each other.
Step shuffle(const Layout* now, const Layout* goal, const std::vector<int64_t>& differing, const Problem& p) {
  auto attempt = [&](const std::vector<int64_t>& axes) {
    auto placements = now->placements();
    for (auto axis : axes) placements[axis] = goal->placements()[axis];
    return Step{StepKind::all_to_all, axes, now, now->with(placements)};
  };
  for (auto axis : differing) {
    auto step = attempt({axis});
    if (closed(step, p)) return step;
  }
  std::vector<int64_t> whole;  // all axes but those with a pending reduction: always closed
  for (size_t axis = 0; axis < now->placements().size(); ++axis) {
    if (!is_partial(now->placements()[axis]) && !is_partial(goal->placements()[axis])) whole.push_back(axis);
  }
  for (size_t a = 0; a < differing.size(); ++a) {
    for (auto b : whole) {
      if (b == differing[a]) continue;
      auto step = attempt({std::min(differing[a], b), std::max(differing[a], b)});
      if (closed(step, p)) return step;
    }
  }
  return attempt(whole);
}

std::vector<int64_t> differing_axes(const Layout* from, const Layout* to) {
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < from->placements().size(); ++axis) {
    if (from->placements()[axis] != to->placements()[axis]) axes.push_back(axis);
  }
  return axes;
}

// Shard -> Partial goes through Replicate: gathers an innermost shard if there is one, else shuffles.
Step gather_for_pend(const Layout* now, const Layout* to, const std::vector<int64_t>& differing, const Problem& p) {
  auto goal = to->placements();
  std::vector<int64_t> cut;
  for (auto axis : differing) {
    if (!is_partial(goal[axis])) continue;
    goal[axis] = Replicate();
    cut.push_back(axis);
    if (auto step = direct(now, axis, Replicate())) return *step;
  }
  return shuffle(now, now->with(goal), cut, p);
}

// Whether two consecutive reductions can run as one along the axes of both: both all-reduce or both reduce-scatter, of
// the same op, or of sums and averages, which are sums that are divided at the end.
bool merge(const Step& first, const Step& second) {
  if (first.kind != second.kind || (first.kind != StepKind::all_reduce && first.kind != StepKind::reduce_scatter))
    return false;
  auto& own = second.from->placements()[second.axes[0]];
  return std::all_of(first.axes.begin(), first.axes.end(), [&](int64_t axis) {
    auto& other = first.from->placements()[axis];
    return other == own || (adds_up(other) && adds_up(own));
  });
}

void append(Plan& plan, Step step, const Problem& p) {
  if (!plan.steps.empty() && merge(plan.steps.back(), step)) {
    auto& last = plan.steps.back();
    Step one{step.kind, last.axes, last.from, step.to};
    one.axes.insert(one.axes.end(), step.axes.begin(), step.axes.end());
    std::sort(one.axes.begin(), one.axes.end());
    auto apart = cost_of(last, p), together = cost_of(one, p);
    if (together < apart + cost_of(step, p)) {
      plan.cost += together - apart;
      last = std::move(one);
      return;
    }
  }
  plan.cost += cost_of(step, p);
  plan.steps.push_back(std::move(step));
}

// Visits the axes in `order` repeatedly, each time taking a direct step where one is legal. If none is, it settles a
// pending reduction or shuffles nested shards. Every round makes progress, so this ends.
Plan in_order(const Layout* from, const Layout* to, const std::vector<int64_t>& order, const Problem& p) {
  Plan plan;
  auto* now = from;
  while (now != to) {
    bool moved = false;
    for (auto axis : order) {
      if (now->placements()[axis] == to->placements()[axis]) continue;
      if (auto step = direct(now, axis, to->placements()[axis])) {
        now = step->to;
        append(plan, std::move(*step), p);
        moved = true;
      }
    }
    if (moved) continue;
    auto differing = differing_axes(now, to);
    auto pending_in = [&](const Layout* layout) {
      return std::find_if(differing.begin(), differing.end(),
                          [&](int64_t axis) { return is_partial(layout->placements()[axis]); });
    };
    if (auto unsettled = pending_in(now); unsettled != differing.end()) {
      append(plan, *direct(now, *unsettled, Replicate()), p);
    } else if (pending_in(to) != differing.end()) {
      append(plan, gather_for_pend(now, to, differing, p), p);
    } else {
      append(plan, shuffle(now, to, differing, p), p);
    }
    now = plan.steps.back().to;
  }
  return plan;
}

Plan cheapest(const Layout* from, const Layout* to, const Problem& p) {
  auto axes = differing_axes(from, to);
  if (axes.size() == 1) return in_order(from, to, axes, p);
  Plan best;
  bool first = true, partial = false;
  auto consider = [&](Plan plan) {
    if (first || plan.cost < best.cost) best = std::move(plan);
    first = false;
  };
  if (axes.size() <= 3) {
    auto order = axes;
    do consider(in_order(from, to, order, p));
    while (std::next_permutation(order.begin(), order.end()));
  } else {
    consider(in_order(from, to, axes, p));
    consider(in_order(from, to, {axes.rbegin(), axes.rend()}, p));
  }
  for (auto axis : axes) {
    partial = partial || is_partial(from->placements()[axis]) || is_partial(to->placements()[axis]);
  }
  if (partial || best.steps.size() < 2) return best;
  Plan one;  // everything in a single all-to-all
  append(one, Step{StepKind::all_to_all, axes, from, to}, p);
  if (one.cost < best.cost && closed(one.steps[0], p)) return one;
  return best;
}

void check(const Layout* from, const Layout* to) {
  TORCH_INTERNAL_ASSERT(from->mesh() == to->mesh());
  TORCH_INTERNAL_ASSERT(have_one_value(to->placements()), str(to->placements()));
  for (size_t axis = 0; axis < from->placements().size(); ++axis) {
    auto &a = from->placements()[axis], &b = to->placements()[axis];
    TORCH_CHECK_VALUE(!is_partial(a) || !is_partial(b) || a == b, "[redistribute] ", str(from->placements()),
                      " cannot become ", str(to->placements()), ": a pending ", str(a), " is not a pending ", str(b),
                      ". Redistribute to Replicate first.");
  }
}

}  // namespace

Plan plan(const Layout* from, const Layout* to, c10::ArrayRef<int64_t> shape, int64_t element_size) {
  if (from == to) return {};
  check(from, to);
  return cheapest(from, to, {shape, element_size});
}

double plan_cost(const Layout* from, const Layout* to, c10::ArrayRef<int64_t> shape, int64_t element_size) {
  if (from == to) return 0;
  if (!have_one_value(to->placements())) return kLocalStep;  // part of a choice over several axes; impossible alone
  Problem p{shape, element_size};
  auto axes = differing_axes(from, to);
  if (axes.size() == 1) {
    if (auto step = direct(from, axes[0], to->placements()[axes[0]])) return cost_of(*step, p);
  }
  return cheapest(from, to, p).cost;
}

std::string str(StepKind kind) {
  switch (kind) {
    case StepKind::narrow: return "narrow";
    case StepKind::all_gather: return "all_gather";
    case StepKind::all_to_all: return "all_to_all";
    case StepKind::all_reduce: return "all_reduce";
    case StepKind::reduce_scatter: return "reduce_scatter";
    case StepKind::pend: return "pend";
  }
  return "";
}

std::string str(const Plan& plan) {
  std::string text;
  for (auto& step : plan.steps) {
    if (!text.empty()) text += "; ";
    text += str(step.kind) + " ";
    for (size_t k = 0; k < step.axes.size(); ++k) {
      if (k) text += "_";
      text += step.from->mesh().axis_name(step.axes[k]);
    }
    text += " " + str(step.from->placements()) + " -> " + str(step.to->placements());
  }
  return text;
}

}  // namespace intarsia
