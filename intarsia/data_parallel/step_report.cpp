#include "intarsia/data_parallel/step_report.h"

#include <algorithm>

#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

constexpr int64_t kUnaveraged = 16;  // added to the number of the part

std::vector<int64_t> as_numbers(const StepReport& report) {
  auto part = static_cast<int64_t>(report.part) + (report.unaveraged ? kUnaveraged : 0);
  std::vector<int64_t> numbers = {part, report.steps};
  for (auto use : report.uses) numbers.push_back(static_cast<int64_t>(use));
  numbers.insert(numbers.end(), report.order.begin(), report.order.end());
  return numbers;
}

StepReport from_numbers(const std::vector<int64_t>& numbers, size_t leaf_count) {
  StepReport report;
  report.part = static_cast<Part>(numbers[0] % kUnaveraged);
  report.unaveraged = numbers[0] >= kUnaveraged;
  report.steps = static_cast<int32_t>(numbers[1]);
  auto uses = numbers.begin() + 2, order = uses + static_cast<int64_t>(leaf_count);
  for (auto use = uses; use != order; ++use) report.uses.push_back(static_cast<Use>(*use));
  report.order.assign(order, numbers.end());
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
  exchange_.emplace(axis, as_numbers(mine));
}

void StepReports::finish() {
  for (auto& numbers : exchange_->finish()) reports_.push_back(from_numbers(numbers, leaf_count_));
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
  return ranks.empty() ? "" : names_of_ranks(ranks);
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

}  // namespace intarsia
