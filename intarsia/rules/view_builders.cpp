#include "intarsia/rules/view_builders.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

// Runs of dims on both sides with the same number of elements: [2, 3, 4] viewed as [6, 2, 2] is {2,3|6}, {4|2,2}.
struct Group {
  std::vector<int64_t> in, out;  // dims
};

int64_t size_of(c10::ArrayRef<int64_t> sizes, const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (auto d : dims) n *= sizes[d];
  return n;
}

std::vector<Group> groups_of(c10::ArrayRef<int64_t> in, c10::ArrayRef<int64_t> out) {
  std::vector<Group> groups;
  size_t i = 0, o = 0;
  while (i < in.size() || o < out.size()) {
    Group group;
    if (i < in.size()) group.in.push_back(i++);
    if (o < out.size()) group.out.push_back(o++);
    while (size_of(in, group.in) != size_of(out, group.out)) {
      if (size_of(in, group.in) < size_of(out, group.out) ? i < in.size() : o == out.size()) {
        group.in.push_back(i++);
      } else {
        group.out.push_back(o++);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

bool empty(c10::ArrayRef<int64_t> sizes) { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

Placement cut(int64_t dim, int64_t blocks) { return blocks == 1 ? Placement(Shard(dim)) : StridedShard(dim, blocks); }

// Sharding one dim inside a group repeats `before` times, once per position of the dims before it. Seen from the other
// side, the same sharding is a plain Shard where the repetition agrees, else a StridedShard whose blocks are the rest
// of the repetition. same_elements checks whether the parts really agree (uneven extents).
void add_group_rows(const Group& group, const OpCall& call, Rows& rows) {
  auto &in = call.inputs[0].sizes, &out = call.outputs[0].sizes;
  int64_t before_p = 1;
  for (auto p : group.in) {
    int64_t before_q = 1;
    for (auto q : group.out) {
      auto repeat = std::max(before_p, before_q);
      bool inside = repeat < before_p * std::max<int64_t>(in[p], 2) && repeat < before_q * std::max<int64_t>(out[q], 2);
      if (inside && repeat % before_p == 0 && repeat % before_q == 0) {
        rows.push_back({{cut(p, repeat / before_p)}, {cut(q, repeat / before_q)}});
      }
      before_q *= out[q];
    }
    before_p *= in[p];
  }
}

// The linear positions within a group that a shard holds, in local order.
Intervals positions(const Layout& layout, c10::ArrayRef<int64_t> sizes, const std::vector<int64_t>& dims,
                    c10::ArrayRef<int64_t> coordinate) {
  Intervals all;
  all.push_back({0, 1});
  for (auto dim : dims) {
    auto held = intervals_of(layout, dim, sizes[dim], coordinate);
    bool whole = held.size() == 1 && held[0].size() == sizes[dim];
    Intervals next;
    for (auto& outer : all) {
      if (whole) {
        next.push_back({outer.begin * sizes[dim], outer.end * sizes[dim]});
        continue;
      }
      for (auto position = outer.begin; position < outer.end; ++position) {
        for (auto& inner : held) {
          Interval run{position * sizes[dim] + inner.begin, position * sizes[dim] + inner.end};
          if (!next.empty() && next.back().end == run.begin) {
            next.back().end = run.end;
          } else {
            next.push_back(run);
          }
        }
      }
    }
    all = std::move(next);
  }
  Intervals merged;
  for (auto& run : all) {
    if (!merged.empty() && merged.back().end == run.begin) {
      merged.back().end = run.end;
    } else {
      merged.push_back(run);
    }
  }
  return merged;
}

bool cuts_any(const Layout& layout, const std::vector<int64_t>& dims) {
  for (auto& p : layout.placements()) {
    if (std::find(dims.begin(), dims.end(), cut_dim(p)) != dims.end()) return true;
  }
  return false;
}

// Whether every rank holds the same elements in the same order on both sides, so that the view is local.
bool same_elements(const OpCall& call, const Layout& in, const Layout& out) {
  auto &from = call.inputs[0].sizes, &to = call.outputs[0].sizes;
  auto& mesh = in.mesh();
  for (auto& group : groups_of(from, to)) {
    if (!cuts_any(in, group.in) && !cuts_any(out, group.out)) continue;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      auto coordinate = mesh.coordinate_at(rank);
      auto held = positions(in, from, group.in, coordinate), kept = positions(out, to, group.out, coordinate);
      if (!std::equal(held.begin(), held.end(), kept.begin(), kept.end())) return false;
    }
  }
  return true;
}

const Group* group_with(const std::vector<Group>& groups, int64_t dim) {
  for (auto& group : groups) {
    if (std::find(group.in.begin(), group.in.end(), dim) != group.in.end()) return &group;
  }
  return nullptr;
}

// Extents on the first rank, after the axes so far have split them; same_elements checks the other ranks.
struct Cut {
  std::vector<int64_t> in, out;
};

// The dims of the result that may be sharded if input dim `dim` is, as placements.
std::vector<Placement> cuts_of_result(const Group& group, const Cut& now, const Placement& placement) {
  auto repeat = cut_blocks(placement);
  for (auto p : group.in) {
    if (p == cut_dim(placement)) break;
    repeat *= now.in[p];
  }
  std::vector<Placement> found;
  int64_t before = 1;
  for (auto q : group.out) {
    if (repeat >= before && repeat % before == 0 && repeat < before * std::max<int64_t>(now.out[q], 2)) {
      found.push_back(cut(q, repeat / before));
    }
    before *= now.out[q];
  }
  return found;
}

// Continues with axis `placements.size()`, until the layout of the result holds the same elements.
bool follow_cuts(const OpCall& call, const Layout& in, const std::vector<Group>& groups, const Cut& now,
                 Placements& placements) {
  auto axis = static_cast<int64_t>(placements.size());
  if (axis == in.mesh().ndim()) return same_elements(call, in, *Layout::get(in.mesh(), placements));
  auto& placement = in.placements()[axis];
  auto dim = cut_dim(placement);
  auto choices = dim < 0 ? std::vector{placement} : cuts_of_result(*group_with(groups, dim), now, placement);
  for (auto& choice : choices) {
    auto next = now;
    if (dim >= 0) {
      for (auto* extent : {&next.in[dim], &next.out[cut_dim(choice)]})
        *extent = chunk_of(*extent, in.mesh().size(axis), 0).size();
    }
    placements.push_back(choice);
    if (follow_cuts(call, in, groups, next, placements)) return true;
    placements.pop_back();
  }
  return false;
}

}  // namespace

std::optional<Placements> viewed_in_place(const OpCall& call, const Layout& in) {
  auto &from = call.inputs[0].sizes, &to = call.outputs[0].sizes;
  if (empty(from)) return std::nullopt;
  Placements placements;
  Cut whole{{from.begin(), from.end()}, {to.begin(), to.end()}};
  return follow_cuts(call, in, groups_of(from, to), whole, placements) ? std::optional(placements) : std::nullopt;
}

Rule view(std::function<std::vector<int64_t>(const OpCall&)> map) {
  Rule rule = rows("view", [map](const OpCall& call) {
    Rows rows;
    auto inputs = map(call);
    for (size_t d = 0; d < inputs.size(); ++d) {
      if (inputs[d] >= 0) rows.push_back({{S(inputs[d])}, Placements(call.outputs.size(), S(d))});
    }
    add_for_any_reduction(rows, {{P_sum}, Placements(call.outputs.size(), P_sum)});
    return rows;
  });
  rule.aligned = true;
  return rule;
}

Rule reshape() {
  Rule rule = rows("reshape", [](const OpCall& call) {
    Rows rows;
    add_for_any_reduction(rows, {{P_sum}, {P_sum}});
    if (empty(call.inputs[0].sizes)) return rows;
    for (auto& group : groups_of(call.inputs[0].sizes, call.outputs[0].sizes)) add_group_rows(group, call, rows);
    return rows;
  });
  rule.aligned = true;  // any split: rule.legal decides
  rule.keeps_order = true;
  rule.legal = [](const OpCall& call, const Layout& in, const Layout& out) {
    return empty(call.inputs[0].sizes) || same_elements(call, in, out);
  };
  // A shard's memory may be laid out differently from the whole's; then this copies, and the result is kept as a recipe
  // (see Note [Views that communicate]).
  rule.local.run = [](LocalCall& local) {
    auto result = local.stack[0].toTensor().reshape(local.stack[1].toIntVector());
    local.stack.clear();
    local.stack.emplace_back(std::move(result));
  };
  return rule;
}

}  // namespace intarsia
