#include "intarsia/simulation/rehearsal_engine.h"

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "intarsia/comm/engine.h"
#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

// Copies as much of `from` as fits.
void put(const at::Tensor& from, const at::Tensor& to) {
  auto count = std::min(from.numel(), to.numel());
  to.narrow(0, 0, count).copy_(from.narrow(0, 0, count));
}

// Calls `each` with every member's part of a flat buffer.
template <class Each>
void for_parts(const at::Tensor& buffer, const std::vector<int64_t>& counts, Each each) {
  int64_t begin = 0;
  for (auto count : counts) each(buffer.view(-1).narrow(0, begin, count)), begin += count;
}

class RehearsalEngine final : public Engine {
 public:
  explicit RehearsalEngine(int64_t n) : Engine(n, {0}) {}
  bool simulated() const override { return false; }
  std::string text() const override { return "the first of " + std::to_string(size()) + " ranks that do alike"; }
  std::string carrier(const Line&) const override { return "mirror"; }
  void barrier() const override {}

  Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool) const override {
    if (mine[0].is_meta()) return {};
    auto sum = result[0];
    sum.copy_(mine[0]);
    for (int64_t j = 1; j < line.size; ++j) reduce(sum, sum, mine[0], op);
    return {};
  }

  Wait all_gather(const Line&, const Shards& mine, const Shards& all, const Counts& counts) const override {
    if (mine[0].is_meta()) return {};
    for_parts(all[0], counts[0], [&](const at::Tensor& part) { put(mine[0].view(-1), part); });
    return {};
  }

  // Each member sends to us what we send to ourselves.
  Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                  const Counts& receive_counts) const override {
    if (send[0].is_meta()) return {};
    std::vector<at::Tensor> parts;
    for_parts(send[0], send_counts[0], [&](const at::Tensor& part) { parts.push_back(part); });
    for_parts(receive[0], receive_counts[0], [&](const at::Tensor& part) { put(parts[line.position[0]], part); });
    return {};
  }

  Wait reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                      ReduceOp op) const override {
    if (send[0].is_meta()) return {};
    auto parts = at::empty({result[0].numel() * line.size}, send[0].options());
    Counts part_counts{std::vector<int64_t>(line.size, result[0].numel())};
    all_to_all(line, send, counts, {parts}, part_counts);
    reduce_parts(parts, line.size, result[0], op);
    return {};
  }

  Wait broadcast(const Line&, const Shards&, int64_t) const override { return {}; }
};

}  // namespace

const Engine& rehearsal_engine(int64_t n) {
  using Key = std::pair<int64_t, std::thread::id>;  // see simulation_of
  static auto* mutex = new std::mutex;
  static auto* known = new std::map<Key, std::unique_ptr<RehearsalEngine>>;  // worlds live until the process ends
  std::lock_guard lock(*mutex);
  auto& entry = (*known)[{n, std::this_thread::get_id()}];
  if (!entry) entry = std::make_unique<RehearsalEngine>(n);
  return *entry;
}

}  // namespace intarsia
