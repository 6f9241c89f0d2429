#include "intarsia/core/more_reductions.h"

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>

#include <c10/util/Exception.h>

namespace intarsia {
namespace {

struct Reduction {
  double order = 0;  // of a norm; 0: a masked sum
  MaskedSum sum;
  bool operator==(const Reduction&) const = default;
};

constexpr size_t kNamed = static_cast<size_t>(ReduceOp::bxor) + 1, kMost = 200;

// Reductions are added and never change, so those that are known are read without the lock.
struct Known {
  std::array<Reduction, kMost> all;
  std::atomic<size_t> count{0};
  std::mutex adding;
};

Known& known() {
  static auto* made = new Known;
  return *made;
}

std::optional<ReduceOp> number_of(const Reduction& reduction) {
  auto& k = known();
  std::lock_guard lock(k.adding);
  size_t count = k.count, i = 0;
  while (i < count && !(k.all[i] == reduction)) ++i;
  if (i == kMost) return std::nullopt;
  if (i == count) {
    k.all[i] = reduction;
    k.count = count + 1;
  }
  return static_cast<ReduceOp>(kNamed + i);
}

const Reduction* find(ReduceOp op) {
  auto number = static_cast<size_t>(op);
  if (number < kNamed) return nullptr;
  TORCH_INTERNAL_ASSERT(number - kNamed < known().count, "no reduction has the number ", number);
  return &known().all[number - kNamed];
}

}  // namespace

ReduceOp norm_op(double order) {
  TORCH_CHECK_VALUE(std::isfinite(order) && order > 0, "[norm_op] a norm of order ", order,
                    " can not be pending as one. Use max or min for infinite orders and sum for 0, and redistribute "
                    "others to Replicate.");
  auto op = number_of({order, {}});
  TORCH_CHECK(op, "[norm_op] ", kMost, " reductions are known, and the norm of order ", order,
              " is one more. Redistribute norms of other orders to Replicate.");
  return *op;
}

std::optional<ReduceOp> norm_op_if_room(double order) {
  return std::isfinite(order) && order > 0 ? number_of({order, {}}) : std::nullopt;
}

std::optional<double> norm_order(ReduceOp op) {
  auto* found = find(op);
  return found && found->order > 0 ? std::optional(found->order) : std::nullopt;
}

ReduceOp masked_sum(const MaskedSum& sum) { return number_of({0, sum}).value_or(ReduceOp::sum); }

const MaskedSum* masked_sum_of(ReduceOp op) {
  auto* found = find(op);
  return found && found->order == 0 ? &found->sum : nullptr;
}

bool adds_up(ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg || masked_sum_of(op); }

ReduceOp travels_as(ReduceOp op) { return find(op) ? ReduceOp::sum : op; }

}  // namespace intarsia
