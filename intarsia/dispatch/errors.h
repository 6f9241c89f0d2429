#pragma once
// Makes an error that some ranks see in an op an error on all ranks.
//
// Note [Errors that one rank sees]
// All ranks check shapes, dims and dtypes alike, before anything is sent. Values differ: if an index tensor is sharded,
// only the rank that holds a wrong index fails, and the others would continue and wait for it in the next collective.
// So a rule names the inputs whose values its op may reject (Local::refusable). If such an input is sharded, the ranks
// along those axes exchange one number after the op; if one of them has an error, all raise it, with the same text. A
// backward pass skips this: its indices went through the forward pass. A simulation sees all ranks, needs no messages,
// and says so if an error would not reach all of them.

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// The axes along which one rank may see values that the op rejects while another does not: those that shard the values,
// or any input if a rank has none of it, since kernels do not look at values that they do not need.
std::vector<int64_t> agreeing_axes(const Rule& rule, const OpCall& call, c10::ArrayRef<const Layout*> in,
                                   const DeviceMesh& mesh);

// Collects the errors of the hosted ranks in one call.
class SlotErrors {
 public:
  // Runs the part of one slot and keeps its error for later. Returns whether it succeeded.
  template <class Run>
  bool attempt(size_t slot, Run run) {
    try {
      run();
      return true;
    } catch (const std::exception&) {
      errors_.emplace_back(slot, std::current_exception());
      return false;
    }
  }

  // Another slot did the same as `first`. Returns whether that succeeded.
  bool repeat(size_t first, size_t slot) {
    for (size_t i = 0; i < errors_.size(); ++i) {
      if (errors_[i].first != first) continue;
      errors_.emplace_back(slot, errors_[i].second);
      return false;
    }
    return true;
  }

  // Raises an error if anything went wrong, here or on a rank along the `agreeing` axes, which exchange their errors.
  void raise(const std::string& op, const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const {
    if (!agreeing.empty() || !errors_.empty()) raise_together(op, mesh, agreeing);
  }

 private:
  void raise_together(const std::string& op, const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const;
  void raise_simulated(const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const;

  std::vector<std::pair<size_t, std::exception_ptr>> errors_;
};

}  // namespace intarsia
