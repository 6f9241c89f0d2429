#include "intarsia/core/world.h"

#include <atomic>
#include <cstdlib>

#include <c10/util/Exception.h>

#include "intarsia/core/launchers.h"

namespace intarsia {
namespace {

std::atomic<const World*> process_world_{nullptr};
thread_local const World* scoped_world_ = nullptr;

// Simulated: the process hosts all ranks of this world, which is one.
struct OneRank final : World {
  OneRank() : World(1, {0}) {}
  bool simulated() const override { return true; }
  std::string text() const override { return "one rank"; }
};

const World* chosen_world() { return scoped_world_ ? scoped_world_ : process_world_.load(); }

// Note [A rank that has not joined]
// A program that forgets init() would run once per rank, each time as the only rank of its world, and every copy would
// save over the others. So where a launcher has started several ranks, a process that has not joined has no world.
// Joining implicitly would be no better: the first use of the world may be on one rank only, and joining waits for all
// of them.
void check_joined(const char* where) {
  auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  auto launch = read_launch_of_several(environment);
  if (!launch) return;
  TORCH_CHECK(false, "[", where, "] ", launcher_name(environment, *launch), " started this process as rank ",
              launch->rank, " of ", launch->size,
              ", but it has not joined the job, or has left it. Call init() first and finalize() last. A process that "
              "is no rank of the "
              "job, such as a tool that a rank starts, opens simulate(1).");
}

}  // namespace

const World& current_world(const char* where) {
  if (auto* world = chosen_world()) return *world;
  check_joined(where);
  return world_of_one();
}

bool is_current(const World& world) {
  auto* chosen = chosen_world();
  return &world == (chosen ? chosen : &world_of_one());
}

bool world_was_chosen() { return chosen_world(); }

const World& world_of_one() {
  static auto* world = new OneRank;  // worlds are never freed
  return *world;
}

void set_process_world(const World* world) { process_world_ = world; }
const World* process_world() { return process_world_; }

WorldScope::WorldScope(const World& world) : outer_(scoped_world_) { scoped_world_ = &world; }
WorldScope::~WorldScope() { scoped_world_ = outer_; }

}  // namespace intarsia
