#pragma once
// What goes wrong on some ranks in one op, told to all.
//
// Note [Errors that one rank sees]
// Shapes, dims and dtypes are checked on every rank alike, before anything moves. Values are not: where an index tensor
// is cut, only the rank that holds a wrong place fails, and the others would go on and wait for it in the next
// collective. So a rule names the inputs whose values its op may refuse (Local::refusable). Where such an input is cut,
// the ranks along those axes exchange one number after the op, and if somewhere it is an error, then everywhere, with
// the same text. In a backward pass they do not: what it indexes with went through the forward pass. A simulation sees
// all ranks, needs no messages, and says so if an error would not reach all of them.

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/rules/rule.h"

namespace intarsia {

// The axes along which one rank may see values that the op refuses, and another not: those that cut the values, or any
// input if a rank has none of it, for kernels do not look at values that they do not need.
std::vector<int64_t> agreeing_axes(const Rule& rule, const OpCall& call, c10::ArrayRef<const Layout*> in,
                                   const DeviceMesh& mesh);

class SlotErrors {
 public:
  // Runs the part of one slot, and keeps its error for later. Whether it went well.
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

  // Another slot did the same as `first`. Whether that went well.
  bool repeat(size_t first, size_t slot) {
    for (size_t i = 0; i < errors_.size(); ++i) {
      if (errors_[i].first != first) continue;
      errors_.emplace_back(slot, errors_[i].second);
      return false;
    }
    return true;
  }

  // Throws if anything went wrong, here or on a rank along the `agreeing` axes, which are asked.
  void raise(const std::string& op, const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const {
    if (!agreeing.empty() || !errors_.empty()) raise_together(op, mesh, agreeing);
  }

 private:
  void raise_together(const std::string& op, const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const;
  void raise_simulated(const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const;

  std::vector<std::pair<size_t, std::exception_ptr>> errors_;
};

}  // namespace intarsia
