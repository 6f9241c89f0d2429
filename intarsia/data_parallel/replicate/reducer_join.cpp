// Ranks that run out of batches take part in the steps of the others: see reducer.h.

#include "intarsia/data_parallel/replicate/reducer.h"

#include <algorithm>

namespace intarsia {

void Reducer::join(const std::function<void()>& body, bool divide_by_initial_world_size) {
  struct Scope {
    Reducer& reducer;
    ~Scope() { reducer.joining_ = false; }
  } scope{*this};
  joining_ = true;
  all_know_ = false;
  divide_by_all_ = divide_by_initial_world_size;
  if (axis_.slot_count() != 1 || axis_.size() == 1) return body();  // simulated ranks end together
  try {
    body();
  } catch (...) {
    if (!all_know_) give_up();
    throw;
  }
  while (keep_company()) {
  }
}

// The others are at a step, or will be: they learn that this rank takes no part.
void Reducer::give_up() {
  try {
    open_step();
    end_step(Part::failed);
  } catch (...) {  // the error that caused this is the one to report
  }
}

// One step with the others, with zeros. False if no rank has a step to make; then all take over the model of the rank
// that made the most.
bool Reducer::keep_company() {
  step_.emplace();
  step_->sends_zeros = true;
  prepare_step();
  StepReports reports;
  try {
    reports = exchange(Part::joined);
  } catch (...) {
    clear_step();
    throw;
  }
  bool active = reports.count(Part::active) > 0;
  if (active) learn_order(reports);
  clear_step();
  if (active) return true;
  auto& all = reports.all();
  auto most = std::max_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.steps < b.steps; });
  take_over(most - all.begin());
  return false;
}

}  // namespace intarsia
