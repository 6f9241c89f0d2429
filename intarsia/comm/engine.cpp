#include "intarsia/comm/engine.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace intarsia {
namespace {

// One rank, which communicates only with itself.
class LocalEngine final : public Engine {
 public:
  LocalEngine() : Engine(1, {0}) {}
  bool simulated() const override { return true; }
  std::string text() const override { return "one rank"; }
  std::string carrier(const Line&) const override { return "local"; }
  void barrier() const override {}

  Wait all_reduce(const Line&, const Shards& mine, const Shards& result, ReduceOp, bool) const override {
    return copy(mine, result);
  }
  Wait all_gather(const Line&, const Shards& mine, const Shards& all, const Counts&) const override {
    return copy(mine, all);
  }
  Wait all_to_all(const Line&, const Shards& send, const Counts&, const Shards& receive, const Counts&) const override {
    return copy(send, receive);
  }
  Wait reduce_scatter(const Line&, const Shards& send, const Counts&, const Shards& result, ReduceOp) const override {
    return copy(send, result);
  }
  Wait broadcast(const Line&, const Shards&, int64_t) const override { return {}; }

 private:
  static Wait copy(const Shards& from, const Shards& to) {
    to[0].view(-1).copy_(from[0].view(-1));
    return {};
  }
};

}  // namespace

const Engine& engine_of(const World& world) {
  static auto* local = new LocalEngine;
  if (&world == &world_of_one()) return *local;
  auto* engine = dynamic_cast<const Engine*>(&world);
  TORCH_INTERNAL_ASSERT(engine, "no engine serves ", world.text());
  return *engine;
}

}  // namespace intarsia
