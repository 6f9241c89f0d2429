#include "intarsia/propagate/choose.h"

#include <algorithm>
#include <utility>

#include "intarsia/core/pending.h"
#include "intarsia/propagate/guide.h"
#include "intarsia/propagate/unlisted_partials.h"
#include "intarsia/redistribute/plan.h"
#include "intarsia/rules/view_builders.h"

namespace intarsia {
namespace {

// How many rows per axis enter the cross product on a mesh of several axes.
constexpr size_t kRowsPerAxis = 6;

struct PricedRow {
  const Row* row;
  double cost;
};

// All rows worth trying on one axis. Those of Rule::joint come last.
struct AxisRows {
  Rows rows;
  size_t whole;  // the row all-Replicate
  size_t joint;  // the first of Rule::joint

  bool is_joint(const Row* row) const { return static_cast<size_t>(row - rows.data()) >= joint; }
};

// The rows of the op's rule; those for a guide only if `advised`.
Rows rows_of(const Question& q, bool advised) {
  if (!q.rule) return {};
  auto rows = q.rule->rows(q.call);
  if (!advised) std::erase_if(rows, [](auto& row) { return row.if_advised; });
  return rows;
}

// Gives plain shards this split; a StridedShard stays as the row has it.
Placement with_split(const Placement& placement, int64_t split) {
  return is_shard(placement) ? with_cut_blocks(placement, split) : placement;
}

Row all_replicate(const Question& q) {
  return {Placements(q.call.inputs.size(), Replicate()), Placements(q.call.outputs.size(), Replicate())};
}

// Adds the StridedShard forms of rows, if an input is strided on this axis.
void add_strided_rows(const Question& q, const Rows& base, int64_t axis, Rows& rows) {
  for (auto* layout : q.now) {
    auto split = layout ? cut_blocks(layout->placements()[axis]) : 1;
    if (split == 1) continue;
    for (auto row : base) {
      for (auto& p : row.in) p = with_split(p, split);
      for (auto& p : row.out) p = with_split(p, split);
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(std::move(row));
    }
  }
}

// Whether an input is sharded on this axis as in the row.
bool follows_a_cut(const Question& q, const Row& row, int64_t axis) {
  for (size_t i = 0; i < q.now.size(); ++i) {
    if (q.now[i] && cut_dim(row.in[i]) >= 0 && q.now[i]->placements()[axis] == row.in[i]) return true;
  }
  return false;
}

// The rule's rows, all-Replicate, for aligned rules strided forms, those of placements that rules do not list, and rows
// along a cut that is there.
AxisRows rows_for_axis(const Question& q, const Rows& base, const Rows& joint, int64_t axis) {
  AxisRows result{base, base.size(), 0};
  result.rows.push_back(all_replicate(q));
  if (q.rule && q.rule->aligned) add_strided_rows(q, base, axis, result.rows);
  add_rows_for_unlisted(q, base, axis, result.rows);
  result.joint = result.rows.size();
  for (auto& row : joint) {
    if (follows_a_cut(q, row, axis)) result.rows.push_back(row);
  }
  return result;
}

bool reachable(const Placement& from, const Placement& to) {
  return !(is_partial(from) && is_partial(to)) || from == to;
}

// Whether plain inputs, pending reductions and in-place writes allow the row.
bool applicable(const Question& q, const Row& row, int64_t axis) {
  for (size_t i = 0; i < q.now.size(); ++i) {
    if (!q.call.inputs[i].defined) continue;
    if (!q.now[i]) {
      if (!is_replicate(row.in[i])) return false;
      continue;
    }
    if (!reachable(q.now[i]->placements()[axis], row.in[i])) return false;
    if (is_partial(row.in[i]) && cut_dim(q.now[i]->placements()[axis]) >= 0) return false;
  }
  if (q.written < 0) return true;
  auto& kept = q.now[q.written]->placements()[axis];
  return row.in[q.written] == kept && (row.out.empty() || row.out[0] == kept);
}

// The cost of bringing each input to a layout, remembered: rows ask for the same few layouts again and again.
class InputCosts {
 public:
  explicit InputCosts(const Question& q) : q_(q), known_(q.now.size()) {}

  double operator()(size_t i, const Layout* to) {
    for (auto& [layout, cost] : known_[i]) {
      if (layout == to) return cost;
    }
    auto& form = q_.call.inputs[i];
    auto cost = plan_cost(q_.now[i], to, form.sizes, c10::elementSize(form.dtype));
    known_[i].push_back({to, cost});
    return cost;
  }

 private:
  const Question& q_;
  std::vector<std::vector<std::pair<const Layout*, double>>> known_;
};

// A sharding that no input has yet would surprise the caller and cost a gather later: it is priced as that gather.
double novelty_cost(const Question& q, const Row& row, int64_t axis) {
  bool cut_before = false, cut_after = false;
  for (auto* layout : q.now) cut_before = cut_before || (layout && cut_dim(layout->placements()[axis]) >= 0);
  for (auto& p : row.out) cut_after = cut_after || cut_dim(p) >= 0;
  if (cut_before || !cut_after) return 0;
  double bytes = 0;
  for (auto& form : q.call.outputs) {
    if (form.defined) bytes += static_cast<double>(form.numel() * c10::elementSize(form.dtype));
  }
  auto link = link_cost(q.mesh, {axis});
  return link.message() + link.of(bytes);
}

// Newly sharding a dim of one element leaves all of the work to one rank.
bool cuts_a_single_one(const Question& q, const Row& row, int64_t axis) {
  for (size_t i = 0; i < q.now.size(); ++i) {
    auto dim = q.now[i] ? cut_dim(row.in[i]) : -1;
    if (dim >= 0 && q.call.inputs[i].sizes[dim] == 1 && cut_dim(q.now[i]->placements()[axis]) != dim) return true;
  }
  return false;
}

std::vector<PricedRow> price(const Question& q, const Rows& rows, int64_t axis, InputCosts& input_cost) {
  std::vector<PricedRow> priced;
  for (auto& row : rows) {
    if (!applicable(q, row, axis) || cuts_a_single_one(q, row, axis)) continue;
    double cost = novelty_cost(q, row, axis);
    for (size_t i = 0; i < q.now.size(); ++i) {
      if (!q.now[i] || q.now[i]->placements()[axis] == row.in[i]) continue;
      auto placements = q.now[i]->placements();
      placements[axis] = row.in[i];
      cost += input_cost(i, q.now[i]->with(placements));
    }
    priced.push_back({&row, cost});
  }
  std::stable_sort(priced.begin(), priced.end(), [](auto& a, auto& b) { return a.cost < b.cost; });
  return priced;
}

Choice assemble(const Question& q, const std::vector<const Row*>& picked, InputCosts& input_cost) {
  Choice choice;
  for (size_t i = 0; i < q.now.size(); ++i) {
    if (!q.now[i]) {
      choice.in.push_back(nullptr);
      continue;
    }
    Placements placements;
    for (auto* row : picked) placements.push_back(row->in[i]);
    choice.in.push_back(Layout::get(q.mesh, placements));
    choice.cost += input_cost(i, choice.in.back());
  }
  for (size_t i = 0; i < q.call.outputs.size(); ++i) {
    Placements placements;
    for (auto* row : picked) placements.push_back(row->out[i]);
    choice.out.push_back(Layout::get(q.mesh, placements));
  }
  for (size_t axis = 0; axis < picked.size(); ++axis) choice.cost += novelty_cost(q, *picked[axis], axis);
  return choice;
}

// A plain tensor is not sharded, so rows by which ranks exchange parts do not apply to it.
Rows joint_rows(const Question& q) {
  if (!q.rule || !q.rule->joint.rows) return {};
  for (size_t i = 0; i < q.now.size(); ++i) {
    if (q.call.inputs[i].defined && !q.now[i]) return {};
  }
  return q.rule->joint.rows(q.call);
}

// Whether a row matches the guide's advice on an axis.
bool follows(const Question& q, const Row& row, const Advice& advice, int64_t axis) {
  if (advice.in.size() != q.now.size() || advice.out.size() != q.call.outputs.size()) return false;
  for (size_t i = 0; i < q.now.size(); ++i) {
    if (q.now[i] && (!advice.in[i] || (*advice.in[i])[axis] != row.in[i])) return false;
  }
  for (size_t i = 0; i < advice.out.size(); ++i) {
    if (q.call.outputs[i].defined && (!advice.out[i] || (*advice.out[i])[axis] != row.out[i])) return false;
  }
  return true;
}

// The masked sum that is advised for the results on an axis, if one is.
std::optional<Placement> advised_mask(const Advice& advice, int64_t axis) {
  for (auto& out : advice.out) {
    if (out && is_masked((*out)[axis])) return (*out)[axis];
  }
  return std::nullopt;
}

// Rows know one axis. Over several, a value that is pending in two ways might have no one value, and a whole value that
// is made pending at no cost (ones on all ranks but the first are a product) might change.
bool is_legal(const Question& q, const Choice& choice) {
  auto has_one_value = [](const Layout* layout) { return !layout || have_one_value(layout->placements()); };
  if (!std::all_of(choice.in.begin(), choice.in.end(), has_one_value)) return false;
  if (!std::all_of(choice.out.begin(), choice.out.end(), has_one_value)) return false;
  if (!q.rule || !q.rule->legal) return true;
  auto& first = choice.in[0] ? *choice.in[0] : *Layout::replicated(q.mesh);  // a plain number is replicated
  return q.rule->legal(q.call, first, *choice.out[0]);
}

std::optional<Choice> legal(const Question& q, Choice choice) {
  return is_legal(q, choice) ? std::optional(std::move(choice)) : std::nullopt;
}

// The first combination of rows that moves nothing.
std::optional<Choice> free_choice(const Question& q) {
  if (!q.rule) return std::nullopt;
  auto rows = rows_of(q, false);
  rows.push_back(all_replicate(q));
  auto ordinary = rows.size();
  for (auto& row : joint_rows(q)) rows.push_back(std::move(row));
  bool joint = false;
  std::vector<const Row*> picked;
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) {
    auto found = std::find_if(rows.begin(), rows.end(), [&](auto& row) {
      if (static_cast<size_t>(&row - rows.data()) >= ordinary && !follows_a_cut(q, row, axis)) return false;
      for (size_t i = 0; i < q.now.size(); ++i) {
        if (q.now[i] && q.now[i]->placements()[axis] != row.in[i]) return false;
      }
      return applicable(q, row, axis) && novelty_cost(q, row, axis) == 0;
    });
    if (found == rows.end()) return std::nullopt;
    picked.push_back(&*found);
    joint = joint || static_cast<size_t>(found - rows.begin()) >= ordinary;
  }
  InputCosts input_cost(q);
  auto choice = assemble(q, picked, input_cost);
  if (joint) choice.route = Route::joint;
  return legal(q, std::move(choice));
}

// A view that keeps the order of elements is right in any layouts whose ranks hold the same elements, so it needs no
// rows. None if the ranks would not hold the same.
std::optional<Choice> choose_view(const Question& q, const Placements& in, const Placements& out) {
  auto& now = q.now[0]->placements();
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) {
    bool stays = cut_dim(in[axis]) >= 0 ? cut_dim(out[axis]) >= 0 : in[axis] == out[axis];
    if (!stays || !reachable(now[axis], in[axis]) || (is_partial(in[axis]) && cut_dim(now[axis]) >= 0))
      return std::nullopt;
  }
  Choice choice;
  choice.in.push_back(Layout::get(q.mesh, in));
  choice.out.push_back(Layout::get(q.mesh, out));
  return legal(q, std::move(choice));
}

bool is_view_in_order(const Question& q) {
  return q.rule && q.rule->keeps_order && q.now.size() == 1 && q.now[0] && q.written < 0;
}

// A view that moves nothing, whether or not rows allow it.
std::optional<Choice> view_in_place(const Question& q) {
  if (!is_view_in_order(q)) return std::nullopt;
  auto& now = *q.now[0];
  auto out = viewed_in_place(q.call, now);
  return out ? choose_view(q, now.placements(), *out) : std::nullopt;
}

// All combinations of the best rows of each axis.
std::vector<Choice> priced_choices(const Question& q) {
  auto base = rows_of(q, false), joint = joint_rows(q);
  std::vector<AxisRows> rows;
  std::vector<std::vector<PricedRow>> priced;
  InputCosts input_cost(q);
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) rows.push_back(rows_for_axis(q, base, joint, axis));
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) {
    auto& best = priced.emplace_back(price(q, rows[axis].rows, axis, input_cost));
    if (best.empty()) return {};
    // All-Replicate is always legal, so it stays when the list is cut short.
    auto whole =
        std::find_if(best.begin(), best.end(), [&](auto& p) { return p.row == &rows[axis].rows[rows[axis].whole]; });
    if (q.mesh.ndim() > 1 && best.size() > kRowsPerAxis) {
      auto last = whole == best.end() ? best[kRowsPerAxis - 1] : *whole;
      if (whole - best.begin() >= static_cast<int64_t>(kRowsPerAxis)) best[kRowsPerAxis - 1] = last;
      best.resize(kRowsPerAxis);
    }
  }
  std::vector<Choice> all;
  std::vector<size_t> at(q.mesh.ndim(), 0);
  while (true) {
    std::vector<const Row*> picked;
    for (size_t axis = 0; axis < at.size(); ++axis) picked.push_back(priced[axis][at[axis]].row);
    all.push_back(assemble(q, picked, input_cost));
    auto& choice = all.back();
    choice.legal = is_legal(q, choice);
    if (!q.rule) choice.route = Route::fallback;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      if (rows[axis].is_joint(picked[axis])) choice.route = Route::joint;
    }
    size_t axis = at.size();
    while (axis > 0 && ++at[axis - 1] == priced[axis - 1].size()) at[--axis] = 0;
    if (axis == 0) break;
  }
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.cost < b.cost; });
  return all;
}

// The guide's advice, if the rows allow it.
std::optional<Choice> advised_choice(const Question& q) {
  if (!q.advice || !q.rule) return std::nullopt;
  auto& advice = *q.advice;
  if (is_view_in_order(q) && advice.in[0] && advice.out[0]) {
    if (auto choice = choose_view(q, *advice.in[0], *advice.out[0])) return choice;
  }
  auto base = rows_of(q, true);
  std::vector<AxisRows> rows;
  std::vector<const Row*> picked;
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) {
    rows.push_back(rows_for_axis(q, base, {}, axis));
    if (auto mask = advised_mask(advice, axis)) add_rows_to_masked(*mask, base, rows.back().rows);
  }
  for (int64_t axis = 0; axis < q.mesh.ndim(); ++axis) {
    auto& all = rows[axis].rows;
    auto found = std::find_if(all.begin(), all.end(),
                              [&](auto& row) { return follows(q, row, advice, axis) && applicable(q, row, axis); });
    if (found == all.end()) return std::nullopt;
    picked.push_back(&*found);
  }
  InputCosts input_cost(q);
  return legal(q, assemble(q, picked, input_cost));
}

Choice lowered() {
  Choice choice;
  choice.route = Route::lowering;
  return choice;
}

}  // namespace

std::optional<Choice> Candidates::first_of(Stage stage) const {
  auto& q = question_;
  switch (stage) {
    case Stage::advised: return advised_choice(q);
    case Stage::lowering: return q.lowered ? std::optional(lowered()) : std::nullopt;
    case Stage::free: return free_choice(q);
    case Stage::view: return view_in_place(q);
    case Stage::priced: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Choice> Candidates::next() {
  while (stage_ != Stage::priced) {
    auto choice = first_of(stage_);
    stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
    if (!choice || std::find(given_.begin(), given_.end(), *choice) != given_.end()) continue;
    given_.push_back(*choice);
    return choice;
  }
  if (!std::exchange(is_priced_, true)) priced_ = priced_choices(question_);
  while (next_ < priced_.size()) {
    auto& choice = priced_[next_++];
    if (std::find(given_.begin(), given_.end(), choice) == given_.end()) return std::move(choice);
  }
  return std::nullopt;
}

std::optional<Choice> choose(const Question& q) {
  Candidates candidates(q);
  auto choice = candidates.next();
  while (choice && !choice->legal) choice = candidates.next();
  return choice;
}

}  // namespace intarsia
