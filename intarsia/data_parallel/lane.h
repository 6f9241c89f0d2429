#pragma once
// The order of what data parallelism sends along an axis: the same on all ranks, or an error.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/comm/axis.h"
#include "intarsia/data_parallel/reduction.h"

namespace intarsia {

// Note [Lanes]
// Messages of a line match in the order in which they are sent. One module that reduces along an axis does so in the order of
// its buckets, which all ranks know. With several, the order is that in which backward passes meet them: a rank that skips
// one of them would take the numbers of one module for those of another. So, where several share an axis, each reduction is
// preceded by a word from every rank which one it is (an agreement, no collective of tensors), and if the words differ all
// ranks raise an error.
class Lane {
 public:
  explicit Lane(const Axis& axis) : axis_(axis) {}
  static Lane& of(const Axis& axis);  // in a simulation one for each thread: simulations of different threads share nothing
  const Axis& axis() const { return axis_; }

  // A user of the lane, by number. All ranks open their users in the same order. `others`: the most users that are alive on
  // any rank of the line.
  int64_t open(std::string name, int64_t others);
  void close(int64_t user);
  void rename(int64_t user, const std::string& name);
  int64_t user_count() const;

  // Checks that all ranks mean this one, if several users share the lane.
  void check(int64_t user, int64_t part);
  // Checks it in any case. Two words have no user: a rank has met an error, or is at the end of its backward pass.
  static constexpr int64_t kNobody = 0, kFailed = 0, kEnd = 1;
  void check_always(int64_t user, int64_t part);

  // Begins the reduction, and moves those begun before it on, so that their sums travel meanwhile.
  void begin(const std::shared_ptr<Reduction>& reduction);
  void advance_all();

 private:
  std::string name_of(int64_t word) const;

  const Axis& axis_;
  std::vector<std::pair<int64_t, std::string>> users_;
  std::vector<std::shared_ptr<Reduction>> begun_;  // and not yet advanced
  int64_t last_ = 0;
  bool shared_ = false;  // several users are alive on some rank
};

}  // namespace intarsia
