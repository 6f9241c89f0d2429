#pragma once
// A world whose ranks do not talk: what a program takes without its communication.

#include <ATen/ATen.h>

#include "intarsia/comm/engine.h"

namespace bench {

// Every collective is over at once. Results hold whatever lies in their memory, but for small ones, by which ranks
// agree: these are our own.
class SilentEngine final : public intarsia::Engine {
 public:
  SilentEngine(int64_t rank, int64_t size) : Engine(size, {rank}) {}
  bool simulated() const override { return false; }
  std::string text() const override { return "ranks that do not talk"; }
  std::string carrier(const intarsia::Line&) const override { return "nothing"; }
  void barrier() const override {}

  intarsia::Wait all_reduce(const intarsia::Line&, const intarsia::Shards& mine, const intarsia::Shards& result,
                            intarsia::ReduceOp, bool) const override {
    if (mine[0].numel() <= kSmall) result[0].copy_(mine[0]);
    return {};
  }
  intarsia::Wait all_gather(const intarsia::Line& line, const intarsia::Shards& mine, const intarsia::Shards& all,
                            const intarsia::Counts& counts) const override {
    int64_t offset = 0;
    for (auto count : counts[0]) {
      if (count == mine[0].numel() && count <= kSmall) all[0].view(-1).narrow(0, offset, count).copy_(mine[0].view(-1));
      offset += count;
    }
    return {};
  }
  intarsia::Wait all_to_all(const intarsia::Line&, const intarsia::Shards&, const intarsia::Counts&,
                            const intarsia::Shards&, const intarsia::Counts&) const override {
    return {};
  }
  intarsia::Wait reduce_scatter(const intarsia::Line&, const intarsia::Shards&, const intarsia::Counts&,
                                const intarsia::Shards&, intarsia::ReduceOp) const override {
    return {};
  }
  intarsia::Wait broadcast(const intarsia::Line&, const intarsia::Shards&, int64_t) const override { return {}; }

 private:
  static constexpr int64_t kSmall = 64;
};

// The engine of this rank in `world`, without its voice. Worlds are never freed.
inline const intarsia::World& silent_twin(const intarsia::World& world) {
  return *new SilentEngine(world.hosted()[0], world.size());
}

}  // namespace bench
