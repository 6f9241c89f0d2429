#pragma once
// The reports of all ranks at the end of a backward pass: which parameters got gradients.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/comm/agreement.h"

namespace intarsia {

// How a rank took part in a step.
enum class Part : int32_t {
  active,  // it ran a backward pass
  joined,  // it has no more batches, and only takes part in the steps of others
  failed,  // its backward pass ended with an error
};

// How a leaf took part on one rank.
enum class Use : int32_t {
  none,     // no gradient arrived
  used,     // one did
  frozen,   // it requires no grad
  gone,     // the parameter no longer exists
  changed,  // it got other gradients than in the first step, which static_graph forbids
};

struct StepReport {
  Part part = Part::active;
  int32_t steps = 0;           // that the rank has made; in fully_shard a fingerprint of its buffers
  std::vector<Use> uses;       // by leaf
  std::vector<int32_t> order;  // of the leaves, as their gradients arrived; empty if known already
  bool unaveraged = false;     // whether parameters of the module have a gradient and are not among the leaves
};

// The reports of all members of our line, in order.
class StepReports {
 public:
  // Sends our own; finish() receives those of the others.
  void begin(const Axis& axis, const StepReport& mine);
  void finish();

  const std::vector<StepReport>& all() const { return reports_; }
  int64_t count(Part part) const;
  int64_t first(Part part) const;  // its position; -1 if there is none
  bool any_used(size_t leaf) const;
  bool any_unaveraged() const;

  // Raises an error of `where`, the same on all ranks, if the step is invalid. `missing` says when a leaf may stay
  // without a gradient.
  enum class Missing { forbidden, everywhere, allowed };
  void check(const char* where, const std::vector<std::string>& names, const std::string& module,
             Missing missing) const;

 private:
  bool all_active(const std::function<bool(const StepReport&)>& is) const;
  std::string who(const std::function<bool(const StepReport&)>& is) const;  // as names_of_ranks

  const Axis* axis_ = nullptr;
  size_t leaf_count_ = 0;
  std::optional<NumbersExchange> exchange_;
  std::vector<StepReport> reports_;
};

}  // namespace intarsia
