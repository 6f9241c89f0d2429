#pragma once
// A world of n ranks played by this one process: no threads, no sockets, every shard visible in a debugger.

#include <cstdint>

#include "intarsia/core/world.h"

namespace intarsia {

class Engine;

// The engine of `n` simulated ranks. One per size, so that meshes of equal simulations are equal; and per thread, so
// that simulations of different threads share nothing.
const Engine& simulation_of(int64_t n);

// When a simulated collective that is only begun (async_op, a Wait) really moves its bytes. Over a network that is any
// time until the wait, so a program that writes to what is being sent gets other numbers: at once hides that, the
// others show it.
enum class Arrival {
  at_once,    // when it is begun
  late,       // when it is waited for
  at_random,  // at some collective in between or when it is waited for, in an order drawn anew, yet the same on every
              // run
};

// While it lives, the current world is one of `n` simulated ranks:
//   auto world = simulate(4);
//   auto mesh = init_device_mesh(torch::kCPU, {4});
class [[nodiscard]] Simulation {
 public:
  explicit Simulation(int64_t n, Arrival arrival = Arrival::at_once);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  WorldScope scope_;
  Arrival outer_;
};

inline Simulation simulate(int64_t n, Arrival arrival = Arrival::at_once) { return Simulation(n, arrival); }

}  // namespace intarsia
