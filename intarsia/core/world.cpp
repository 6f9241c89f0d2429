#include "intarsia/core/world.h"

#include <atomic>

namespace intarsia {
namespace {

std::atomic<const World*> process_world_{nullptr};
thread_local const World* scoped_world_ = nullptr;

// All ranks are played here: all one of them.
struct OneRank final : World {
  OneRank() : World(1, {0}) {}
  bool simulated() const override { return true; }
  std::string text() const override { return "one rank"; }
};

}  // namespace

const World& current_world() {
  if (scoped_world_) return *scoped_world_;
  if (auto* world = process_world_.load()) return *world;
  return world_of_one();
}

const World& world_of_one() {
  static auto* world = new OneRank;  // worlds are never freed
  return *world;
}

void set_process_world(const World* world) { process_world_ = world; }
const World* process_world() { return process_world_; }

WorldScope::WorldScope(const World& world) : outer_(scoped_world_) { scoped_world_ = &world; }
WorldScope::~WorldScope() { scoped_world_ = outer_; }

}  // namespace intarsia
