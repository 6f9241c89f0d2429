#pragma once
// Plans a redistribution from one layout to another: a printable list of steps. Nothing is sent.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "intarsia/core/layout.h"
#include "intarsia/redistribute/cost.h"

namespace intarsia {

enum class StepKind { narrow, all_gather, all_to_all, all_reduce, reduce_scatter, pend };

// After every step the tensor has a legal layout, one step closer to the goal.
struct Step {
  StepKind kind;
  std::vector<int64_t> axes;  // the mesh axes whose placements change, and along which bytes are sent
  const Layout* from;
  const Layout* to;
};

// The steps of a redistribution, in order, and their cost.
struct Plan {
  std::vector<Step> steps;
  double cost = 0;  // see Note [Cost]
};

// The cheapest known steps for a tensor of global `shape` with elements of `element_size` bytes. Every rank gets the
// same plan. Partial to a Partial of another kind is an error.
Plan plan(const Layout* from, const Layout* to, c10::ArrayRef<int64_t> shape, int64_t element_size);

// The cost alone; builds the steps only where it has to.
double plan_cost(const Layout* from, const Layout* to, c10::ArrayRef<int64_t> shape, int64_t element_size);

std::string str(const Plan& plan);  // reduce_scatter tp [R, P(sum)] -> [R, S(0)]; ...
std::string str(StepKind kind);

}  // namespace intarsia
