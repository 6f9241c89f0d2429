#include "intarsia/simulation/moves/simulated_all_to_all.h"

#include <algorithm>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/run_collective.h"
#include "intarsia/redistribute/common_runs.h"
#include "intarsia/simulation/arrivals.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

using Held = c10::SmallVector<Intervals, 4>;  // per dim

// Members of a line that send to each other: ranks that differ only along axes that the step has sharded before. Copies
// along other axes of the step form separate lines, since a rank takes from the copy beside it.
struct GivingLine {
  std::vector<size_t> slots;   // in the order of their coordinates
  std::vector<int64_t> place;  // of the line, on the axes that shard anything
  Held held, wanted;           // by all of them together
};

Held held_at(const Layout& layout, c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> coordinate) {
  Held held;
  for (size_t dim = 0; dim < shape.size(); ++dim) held.push_back(intervals_of(layout, dim, shape[dim], coordinate));
  return held;
}

Intervals union_of(std::vector<Interval> runs) {
  std::sort(runs.begin(), runs.end(),
            [](auto& a, auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  Intervals all;
  for (auto& run : runs) {
    if (!all.empty() && run.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, run.end);
    } else if (run.size()) {
      all.push_back(run);
    }
  }
  return all;
}

// A dim's positions do not depend on those of another dim, since an axis shards one dim.
Held union_of(const std::vector<Held>& by_slot, const std::vector<size_t>& slots) {
  Held all;
  for (size_t dim = 0; dim < by_slot[slots[0]].size(); ++dim) {
    std::vector<Interval> runs;
    for (auto slot : slots) runs.insert(runs.end(), by_slot[slot][dim].begin(), by_slot[slot][dim].end());
    all.push_back(union_of(std::move(runs)));
  }
  return all;
}

std::vector<Runs> runs_in(const Held& source, const Held& target) {
  std::vector<Runs> runs;
  for (size_t dim = 0; dim < source.size(); ++dim) runs.push_back(common_runs(source[dim], target[dim]));
  return runs;
}

c10::DimVector shape_of(const Held& held) {
  c10::DimVector shape;
  for (auto& intervals : held) shape.push_back(extent_of(intervals));
  return shape;
}

class PlayedStep {
 public:
  PlayedStep(const Step& step, c10::ArrayRef<int64_t> shape) : step_(step) {
    auto& slots = step.from->mesh().slots();
    std::map<std::vector<int64_t>, std::vector<std::pair<std::vector<int64_t>, size_t>>> members;
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      auto& coordinate = slots[slot].coordinate;
      before_.push_back(held_at(*step.from, shape, coordinate));
      after_.push_back(held_at(*step.to, shape, coordinate));
      auto line = coordinate;
      for (auto axis : step.axes) {
        if (!is_replicate(step.from->placements()[axis])) line[axis] = 0;
      }
      line.push_back(slots[slot].group);
      members[line].emplace_back(coordinate, slot);
    }
    for (auto& [key, line] : members) {
      std::sort(line.begin(), line.end());
      auto& giving = lines_.emplace_back();
      for (auto& member : line) giving.slots.push_back(member.second);
      for (size_t axis = 0; axis + 1 < key.size(); ++axis) giving.place.push_back(is_cut(axis) ? key[axis] : 0);
      giving.held = union_of(before_, giving.slots);
      giving.wanted = union_of(after_, giving.slots);
    }
  }

  // The most elements that a rank sends to others and receives from them. A member sends the positions that others want
  // of it, once to each of them.
  std::pair<int64_t, int64_t> most_elements() const {
    int64_t alike = 1, sent = 0, received = 0;
    for (auto axis : step_.axes) {
      bool gives = !is_replicate(step_.from->placements()[axis]);
      if (gives && cut_dim(step_.to->placements()[axis]) < 0) alike *= step_.from->mesh().size(axis);
    }
    for (auto& line : lines_) {
      for (auto slot : line.slots) {
        auto own = count_of(runs_in(before_[slot], after_[slot]));
        sent = std::max(sent, alike * count_of(runs_in(before_[slot], line.wanted)) - own);
        received = std::max(received, c10::multiply_integers(shape_of(after_[slot])) - own);
      }
    }
    return {sent, received};
  }

  Shards results(const Shards& shards) const {
    at::AutoDispatchBelowADInplaceOrView below_gradients;
    auto hash = [&](size_t i) {
      uint64_t sum = 0;
      for (auto slot : lines_[i].slots) sum = 31 * sum + twin_hash(shards[slot]);
      return sum;
    };
    auto same = [&](size_t i, size_t j) {
      auto &a = lines_[i], &b = lines_[j];
      bool alike = a.place == b.place && a.slots.size() == b.slots.size();
      for (size_t k = 0; k < a.slots.size() && alike; ++k) alike = are_twins(shards[a.slots[k]], shards[b.slots[k]]);
      return alike;
    };
    auto first = first_alike(lines_.size(), hash, same);
    Shards result(shards.size());
    for (size_t i = 0; i < lines_.size(); ++i) {
      auto &line = lines_[i], &leader = lines_[first[i]];
      if (first[i] == i) deal(line, shards, result);
      for (size_t k = 0; k < line.slots.size() && first[i] != i; ++k)
        result[line.slots[k]] = twin_of(result[leader.slots[k]]);
    }
    return result;
  }

 private:
  bool is_cut(size_t axis) const {
    return !is_replicate(step_.from->placements()[axis]) || !is_replicate(step_.to->placements()[axis]);
  }

  // Assembles what the members of a line hold together, and gives each its part.
  void deal(const GivingLine& line, const Shards& shards, Shards& result) const {
    auto whole = at::empty(shape_of(line.held), shards[line.slots[0]].options());
    for (auto slot : line.slots) {
      auto runs = runs_in(before_[slot], line.held);
      if (count_of(runs)) place(whole, extract(shards[slot], runs), runs);
    }
    std::map<std::vector<int64_t>, size_t> known;  // by the coordinates on the axes that shard the result
    for (auto slot : line.slots) {
      auto key = step_.from->mesh().slots()[slot].coordinate;
      for (size_t axis = 0; axis < key.size(); ++axis) {
        if (cut_dim(step_.to->placements()[axis]) < 0) key[axis] = 0;
      }
      auto [found, is_new] = known.emplace(std::move(key), slot);
      result[slot] = is_new ? part(whole, runs_in(line.held, after_[slot]), shape_of(after_[slot]))
                            : twin_of(result[found->second]);
    }
  }

  static at::Tensor part(const at::Tensor& whole, const std::vector<Runs>& runs, const c10::DimVector& shape) {
    auto count = c10::multiply_integers(shape);
    TORCH_INTERNAL_ASSERT(count_of(runs) == count, "the members do not hold all that is needed");
    if (whole.sizes() == at::IntArrayRef(shape)) return whole;
    if (!count) return at::empty(shape, whole.options());
    return extract(whole, runs).clone(at::MemoryFormat::Contiguous);
  }

  Step step_;
  std::vector<Held> before_, after_;  // per slot
  std::vector<GivingLine> lines_;
};

}  // namespace

std::function<Shards()> simulated_all_to_all(const Step& step, const Shards& shards, c10::ArrayRef<int64_t> shape,
                                             bool later) {
  auto& mesh = step.from->mesh();
  auto& axis = Axis::of(mesh, step.axes);
  auto played = std::make_shared<const PlayedStep>(step, shape);
  auto given =
      later ? made_once(shards, [](auto& shard) { return shard.clone(at::MemoryFormat::Contiguous); }) : shards;
  auto result = std::make_shared<Shards>();
  auto move = [played, given, result] { *result = played->results(given); };
  if (axis.size() == 1) {
    move();
    return [result] { return *result; };
  }
  Wait wait;
  auto [sent, received] = played->most_elements();
  auto bytes = static_cast<int64_t>(shards[0].element_size());
  run_all_to_all(engine_of(mesh.world()), axis.line(), sent * bytes, received * bytes, later ? &wait : nullptr,
                 [&] { return arriving(move); });
  return [wait, result] {
    if (wait) wait();
    return *result;
  };
}

}  // namespace intarsia
