#include "intarsia/data_parallel/step_report.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

constexpr int32_t kUnaveraged = 16;  // added to the number of the part

std::vector<int32_t> as_numbers(const StepReport& report) {
  auto part = static_cast<int32_t>(report.part) + (report.unaveraged ? kUnaveraged : 0);
  std::vector<int32_t> numbers = {part, report.steps};
  for (auto use : report.uses) numbers.push_back(static_cast<int32_t>(use));
  numbers.insert(numbers.end(), report.order.begin(), report.order.end());
  return numbers;
}

StepReport from_numbers(const int32_t* numbers, size_t leaf_count, bool with_order) {
  StepReport report;
  report.part = static_cast<Part>(numbers[0] % kUnaveraged);
  report.unaveraged = numbers[0] >= kUnaveraged;
  report.steps = numbers[1];
  numbers += 2;
  for (size_t i = 0; i < leaf_count; ++i) report.uses.push_back(static_cast<Use>(numbers[i]));
  if (with_order) report.order.assign(numbers + leaf_count, numbers + 2 * leaf_count);
  return report;
}

// The first few names, and their number.
std::string names_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 8 ? text + " and " + std::to_string(names.size() - 8) + " more" : text;
}

}  // namespace

void StepReports::begin(const Axis& axis, const StepReport& mine) {
  axis_ = &axis;
  leaf_count_ = mine.uses.size();
  with_order_ = !mine.order.empty();
  auto numbers = at::tensor(as_numbers(mine), at::kInt);
  Counts counts;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    mine_.push_back(numbers);
    gathered_.push_back(at::empty({axis.size() * numbers.numel()}, at::kInt));
    counts.emplace_back(axis.size(), numbers.numel());
  }
  axis.all_gather(mine_, gathered_, counts, &wait_);
}

void StepReports::finish() {
  if (wait_) wait_();
  if (gathered_.empty()) return;
  auto length = mine_[0].numel();
  auto* numbers = gathered_[0].const_data_ptr<int32_t>();
  for (int64_t j = 0; j < axis_->size(); ++j)
    reports_.push_back(from_numbers(numbers + j * length, leaf_count_, with_order_));
}

int64_t StepReports::count(Part part) const {
  return std::count_if(reports_.begin(), reports_.end(), [part](auto& report) { return report.part == part; });
}

int64_t StepReports::first(Part part) const {
  auto found = std::find_if(reports_.begin(), reports_.end(), [part](auto& report) { return report.part == part; });
  return found == reports_.end() ? -1 : found - reports_.begin();
}

bool StepReports::any_used(size_t leaf) const {
  return std::any_of(reports_.begin(), reports_.end(), [leaf](auto& report) { return report.uses[leaf] == Use::used; });
}

bool StepReports::any_unaveraged() const {
  return std::any_of(reports_.begin(), reports_.end(), [](auto& report) { return report.unaveraged; });
}

std::string StepReports::who(const std::function<bool(const StepReport&)>& is) const {
  std::vector<int64_t> ranks;
  for (size_t j = 0; j < reports_.size(); ++j) {
    if (is(reports_[j])) ranks.push_back(axis_->line().ranks[0][j]);
  }
  return ranks.empty() ? "" : rank_list(ranks);
}

bool StepReports::all_active(const std::function<bool(const StepReport&)>& is) const {
  return std::all_of(reports_.begin(), reports_.end(),
                     [&](auto& report) { return report.part != Part::active || is(report); });
}

void StepReports::check(const char* where, const std::vector<std::string>& leaves, const std::string& module,
                        Missing missing) const {
  auto failed = who([](auto& report) { return report.part == Part::failed; });
  TORCH_CHECK(failed.empty(), "[", where, "] the backward pass of ", module, " ended with an error on ", failed,
              ", so the gradients of this step are not averaged. See the error there; then call zero_grad and go on.");
  for (auto [use, what, advice] : {
           std::tuple(Use::changed, " got gradients otherwise than in the first step", "Do not set static_graph."),
           std::tuple(Use::frozen, " is frozen", "Set requires_grad alike on all ranks."),
           std::tuple(Use::gone, " exists no more", "Keep the same parameters on all ranks."),
           std::tuple(Use::none, " got no gradient",
                      "Use it in every step, set find_unused_parameters, or leave it out with "
                      "ignored_parameters."),
       }) {
    if (use == Use::none && missing == Missing::allowed) continue;
    bool alike_is_fine = use == Use::frozen || use == Use::gone || (use == Use::none && missing == Missing::everywhere);
    std::string ranks;
    std::vector<std::string> names;
    for (size_t i = 0; i < leaves.size(); ++i) {
      auto is = [i, use = use](const StepReport& report) {
        return report.part == Part::active && report.uses[i] == use;
      };
      auto these = who(is);
      if (these.empty() || (alike_is_fine && all_active(is))) continue;
      if (!names.empty() && these != ranks) continue;  // one group of ranks is enough
      ranks = these;
      names.push_back(leaves[i]);
    }
    TORCH_CHECK(names.empty(), "[", where, "] ", names_of(names), " of ", module, what, " on ", ranks, ". ", advice);
  }
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace intarsia
