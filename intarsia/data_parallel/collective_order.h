#pragma once
// Checks that all ranks start the collectives of data parallelism along an axis in one order.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/comm/axis.h"
#include "intarsia/data_parallel/reduction.h"

namespace intarsia {

// Note [Order of collectives]
// Collectives along an axis match in the order in which the ranks start them. A single module reduces its buckets in an
// order that all ranks know. Several modules reduce in the order in which the backward pass reaches them: a rank that
// skips one of them would receive the gradients of one module as those of another. So, if several modules share an
// axis, the ranks first agree on what comes next: each sends the number of its module and of the bucket or the phase.
// If the numbers differ, all ranks raise an error that names both modules, or what they do with one. A trace lists
// these exchanges as agreements, since they send no part of a tensor.
class CollectiveOrder {
 public:
  explicit CollectiveOrder(const Axis& axis) : axis_(axis) {}
  static CollectiveOrder& of(
      const Axis& axis);  // in a simulation one per thread: simulations of different threads share nothing
  const Axis& axis() const { return axis_; }

  // The text, for errors, for what a rank does with its module at a part of it: "gathers it".
  using PartText = std::string (*)(int64_t part);

  // Registers a module, and returns its number. All ranks open their modules in the same order. `others`: the most
  // modules that are registered on any rank of the line.
  int64_t open(std::string name, PartText part_text, int64_t others);
  void close(int64_t module);
  void rename(int64_t module, const std::string& name);
  int64_t module_count() const;

  // Raises an error on all ranks unless all of them are at this part of this module. Exchanges nothing if one module
  // has the axis to itself.
  void agree_if_shared(int64_t module, int64_t part);
  // The same in any case. Two parts belong to no module: a rank has met an error, or is at the end of its backward
  // pass.
  static constexpr int64_t kNoModule = 0, kFailed = 0, kEnd = 1;
  void agree(int64_t module, int64_t part);

  // Starts the reduction, and advances those started before it, so that their sums are sent meanwhile.
  void begin(const std::shared_ptr<Reduction>& reduction);
  void advance_all();

 private:
  struct Module {
    int64_t number;
    std::string name;
    PartText part_text;
  };
  const Module* find(int64_t number) const;
  std::string name_of(int64_t position) const;
  void check_parts(const std::vector<int64_t>& positions) const;

  const Axis& axis_;
  std::vector<Module> modules_;
  std::vector<std::shared_ptr<Reduction>> begun_;  // and not yet advanced
  int64_t last_ = 0;
  bool shared_ = false;  // several modules are registered on some rank
};

}  // namespace intarsia
