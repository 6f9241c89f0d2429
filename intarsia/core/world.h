#pragma once
// A world is the set of ranks of a job, and which of them this process hosts.
//
// In a real job a process hosts one rank. In a simulation it hosts all of them and runs them in lockstep.
// Code that depends on a rank's coordinate is written once, as a loop over the hosted ranks.

#include <cstdint>
#include <string>
#include <vector>

namespace intarsia {

class World {
 public:
  World(int64_t size, std::vector<int64_t> hosted) : size_(size), hosted_(std::move(hosted)) {}
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int64_t size() const { return size_; }
  const std::vector<int64_t>& hosted() const { return hosted_; }  // ascending
  virtual bool simulated() const = 0;
  virtual std::string text() const = 0;

 private:
  int64_t size_;
  std::vector<int64_t> hosted_;
};

// The world of the innermost scope on this thread; else the process's world (see init()); else a world of one rank
// without sockets. That last one is an error that names `where` if a launcher started this process as one of several
// ranks: see Note [A rank that has not joined].
const World& current_world(const char* where = "current_world");

// Whether `world` is the current one. Never an error.
bool is_current(const World& world);

// Whether the program made the current world: by a scope, init() or one of its variants.
bool world_was_chosen();

// The process's world, once init() has made it. Worlds live until the process ends.
void set_process_world(const World* world);
const World* process_world();

// Makes `world` current on this thread while the scope lives. Scopes nest.
class WorldScope {
 public:
  explicit WorldScope(const World& world);
  ~WorldScope();
  WorldScope(const WorldScope&) = delete;
  WorldScope& operator=(const WorldScope&) = delete;

 private:
  const World* outer_;
};

// A world of one rank, without communication. The same one on every call.
const World& world_of_one();

}  // namespace intarsia
