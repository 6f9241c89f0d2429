#pragma once
// A world of n ranks played by this one process: no threads, no sockets, every shard visible in a debugger.

#include <cstdint>

#include "intarsia/core/world.h"

namespace intarsia {

class Engine;

// The engine of `n` simulated ranks. One per size, so that meshes of equal simulations are equal.
const Engine& simulation_of(int64_t n);

// While it lives, the current world is one of `n` simulated ranks:
//   auto world = simulate(4);
//   auto mesh = init_device_mesh(torch::kCPU, {4});
class [[nodiscard]] Simulation {
 public:
  explicit Simulation(int64_t n);
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  WorldScope scope_;
};

inline Simulation simulate(int64_t n) { return Simulation(n); }

}  // namespace intarsia
