#pragma once
// simulate(n): a world whose n ranks are all hosted by this process. No threads, no sockets, every shard visible in a
// debugger.

#include <cstdint>

#include "intarsia/core/world.h"

namespace intarsia {

class Engine;

// The engine of `n` simulated ranks. One per size, so that meshes of equal simulations are equal; and per thread, so
// that simulations of different threads share nothing.
const Engine& simulation_of(int64_t n);

// When a simulated asynchronous collective (async_op, a Wait) really moves its bytes. Over a network, that is any time
// until the wait, so a program that writes to what is being sent gets other numbers: `at_once` hides that, the others
// expose it.
enum class Arrival {
  at_once,    // when it starts
  late,       // when it is waited for
  at_random,  // at some collective in between or at the wait, in a random order that is the same on every run
};

// While it lives, the current world has `n` simulated ranks:
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
