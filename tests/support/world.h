#pragma once
// The worlds that a test body runs in: simulated ones here; in a program of real processes, the world it was started
// in.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "intarsia/core/mesh.h"
#include "intarsia/simulation/simulation.h"

namespace intarsia {

// Calls `body(n)` once per size, inside a world of n ranks. Real processes run only the size that they are.
template <class Body>
void for_each_world(std::initializer_list<int64_t> sizes, Body body) {
  for (auto n : sizes) {
    if (process_world()) {
      if (process_world()->size() == n) body(n);
      continue;
    }
    auto world = simulate(n);
    body(n);
  }
}

// The shapes of meshes over `n` ranks that tests use: 1-D, 2-D and 3-D where n has the factors.
inline std::vector<std::vector<int64_t>> mesh_shapes(int64_t n) {
  std::vector<std::vector<int64_t>> shapes = {{n}};
  for (int64_t a = 2; a * 2 <= n; ++a) {
    if (n % a == 0) shapes.push_back({a, n / a});
  }
  if (n % 8 == 0) shapes.push_back({2, n / 4, 2});
  return shapes;
}

}  // namespace intarsia
