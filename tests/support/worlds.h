#pragma once
// A test body that holds in every world: simulated ones in intarsia_tests, the real one in intarsia_process_tests.

#include <gtest/gtest.h>

#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/core/world.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia {

template <class Body>
void in_every_world(Body body) {
  if (process_world()) return body();
  for (int64_t n : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE("in a simulation of " + std::to_string(n));
    auto world = simulate(n);
    body();
  }
}

// 1, 10, 100, 1000: a wrong sum says which ranks took part.
inline int64_t sign_of(int64_t rank) { return std::llround(std::pow(10, rank)); }
inline int64_t sum_of_signs(int64_t n) { return (sign_of(n) - 1) / 9; }

}  // namespace intarsia
