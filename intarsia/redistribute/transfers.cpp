#include "intarsia/redistribute/transfers.h"

#include <algorithm>
#include <map>

#include "intarsia/redistribute/share.h"

namespace intarsia {
namespace {

using HeldRuns = std::vector<Intervals>;  // per dim

// Ranks that hold, or want, the same positions.
struct Alike {
  HeldRuns held;
  std::vector<int64_t> ranks;
};

// The ranks of a group by what they hold, in the order of the mesh.
std::vector<Alike> alike_ranks(const Layout& layout, c10::ArrayRef<int64_t> shape, int64_t group) {
  auto& mesh = layout.mesh();
  std::vector<Alike> classes;
  std::map<std::vector<int64_t>, size_t> known;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    auto coordinate = mesh.coordinate_at(position);
    if (!holds_value(layout, coordinate)) continue;
    auto cut = coordinate;
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      if (cut_dim(layout.placements()[axis]) < 0) cut[axis] = 0;
    }
    auto [entry, is_new] = known.emplace(cut, classes.size());
    if (is_new) {
      auto& held = classes.emplace_back().held;
      for (size_t dim = 0; dim < shape.size(); ++dim) held.push_back(intervals_of(layout, dim, shape[dim], coordinate));
    }
    classes[entry->second].ranks.push_back(mesh.ranks(group)[position]);
  }
  return classes;
}

std::vector<Runs> runs_in_common(const HeldRuns& source, const HeldRuns& target) {
  std::vector<Runs> result;
  for (size_t dim = 0; dim < source.size(); ++dim) {
    result.push_back(common_runs(source[dim], target[dim]));
    if (result.back().empty()) return {};
  }
  return result;
}

// The positions [part.begin, part.end) of those in the runs.
Runs within(const Runs& runs, Interval part) {
  Runs result;
  int64_t passed = 0;
  for (auto& run : runs) {
    auto both = overlap({passed, passed + run.size}, part);
    auto skipped = both.begin - passed;
    if (both.size()) result.push_back({run.source + skipped, run.target + skipped, both.size()});
    passed += run.size;
  }
  return result;
}

// Splits a piece into at most `parts` parts, along its longest dim.
std::vector<std::vector<Runs>> in_parts(const std::vector<Runs>& piece, int64_t parts) {
  auto shape = shape_of(piece);
  auto dim = std::max_element(shape.begin(), shape.end()) - shape.begin();
  std::vector<std::vector<Runs>> result;
  for (int64_t i = 0; i < parts; ++i) {
    auto part = chunk_of(shape[dim], parts, i);
    if (part.size()) (result.emplace_back(piece))[dim] = within(piece[dim], part);
  }
  return result;
}

// Distributes the requested pieces over the ranks that hold them.
void deal_pieces(const std::vector<int64_t>& holders, const std::vector<Transfer>& asked,
                 std::vector<Transfer>& result) {
  if (asked.empty()) return;
  std::vector<int64_t> given(holders.size(), 0);
  auto parts = std::max<int64_t>(1, holders.size() / asked.size());
  for (auto& ask : asked) {
    for (auto& piece : in_parts(ask.runs, parts)) {
      auto least = std::min_element(given.begin(), given.end());
      *least += count_of(piece);
      result.push_back({holders[least - given.begin()], ask.receiver, std::move(piece)});
    }
  }
}

}  // namespace

std::vector<Transfer> transfers(const Layout& from, const Layout& to, c10::ArrayRef<int64_t> shape, int64_t from_group,
                                int64_t to_group) {
  TORCH_INTERNAL_ASSERT(!from.has_partial() && !shape.empty());
  std::vector<Transfer> result;
  auto wanted = alike_ranks(to, shape, to_group);
  for (auto& source : alike_ranks(from, shape, from_group)) {
    std::vector<Transfer> asked;
    for (auto& target : wanted) {
      auto runs = runs_in_common(source.held, target.held);
      if (runs.empty()) continue;
      for (auto rank : target.ranks) {
        bool has_it = std::find(source.ranks.begin(), source.ranks.end(), rank) != source.ranks.end();
        (has_it ? result : asked).push_back({rank, rank, runs});
      }
    }
    deal_pieces(source.ranks, asked, result);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](auto& a, auto& b) { return std::pair(a.sender, a.receiver) < std::pair(b.sender, b.receiver); });
  return result;
}

std::string str(const std::vector<Transfer>& transfers) {
  std::string text;
  for (auto& transfer : transfers) {
    text +=
        c10::str(text.empty() ? "" : ", ", transfer.sender, " -> ", transfer.receiver, ": ", count_of(transfer.runs));
  }
  return text;
}

}  // namespace intarsia
