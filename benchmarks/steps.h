#pragma once
// What a training step takes on every rank, beside the same step on ranks that do not talk, and what it sends.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "benchmarks/processes.h"
#include "benchmarks/silent.h"
#include "intarsia/intarsia.h"

namespace bench {

// To be called first: the program becomes two ranks of one thread each. On rank 0 it returns what the peer's script
// prints.
inline std::map<std::string, double> start_beside_peer(char** argv, const std::string& script) {
  start_as_ranks(argv, 2);
  at::set_num_threads(1);
  intarsia::init();
  std::map<std::string, double> peer;
  if (intarsia::rank() == 0) {
    peer = read_values("env -u RANK -u WORLD_SIZE -u LOCAL_RANK ${INTARSIA_PYTHON:-python3} benchmarks/" + script +
                       " 2>/dev/null");
  }
  intarsia::barrier();
  return peer;
}

struct Measured {
  double microseconds, alone;  // alone: the same without communication
  int64_t collectives, bytes;
};

// Medians of the step that `make` gives for a mesh of all ranks; both kinds of ranks take turns.
inline Measured measure_step(const std::function<Call(const intarsia::DeviceMesh&)>& make, int steps) {
  auto mesh_of_all = [] { return intarsia::init_device_mesh(at::kCPU, {intarsia::world_size()}, {"tp"}); };
  auto step = make(mesh_of_all());
  auto& silent = silent_twin(intarsia::current_world());
  auto silent_step = [&] {
    intarsia::WorldScope scope(silent);
    return make(mesh_of_all());
  }();
  auto alone = [&] {
    intarsia::WorldScope scope(silent);
    silent_step();
  };
  step();
  alone();
  intarsia::CommDebugMode comms;
  step();
  comms.exit();
  auto medians = medians_us({step, alone}, steps);
  return {medians[0], medians[1], comms.get_total_counts(), comms.total_bytes()};
}

}  // namespace bench
