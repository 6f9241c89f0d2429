#include "intarsia/comm/simulation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/engine.h"
#include "intarsia/comm/reduce.h"

namespace intarsia {
namespace {

std::vector<int64_t> all_ranks(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Collectives that were begun on this thread and have not moved their bytes yet.
class UnderWay {
 public:
  // Moves the bytes when `arrival` says so; the wait is empty if that is now.
  Wait begin(std::function<void()> move) {
    if (arrival == Arrival::at_once) {
      move();
      return {};
    }
    if (arrival == Arrival::at_random) finish_some();
    auto begun = std::make_shared<std::function<void()>>(std::move(move));
    if (arrival == Arrival::at_random) waiting_.push_back(begun);
    return [begun] { finish(*begun); };
  }

  void finish_all() {
    for (auto& begun : std::exchange(waiting_, {})) finish(*begun);
  }

  Arrival arrival = Arrival::at_once;

 private:
  static void finish(std::function<void()>& begun) {
    if (auto move = std::exchange(begun, nullptr)) move();
  }

  void finish_some() {
    std::shuffle(waiting_.begin(), waiting_.end(), dice_);
    for (auto left = dice_() % (waiting_.size() + 1); waiting_.size() > left; waiting_.pop_back()) finish(*waiting_.back());
  }

  std::vector<std::shared_ptr<std::function<void()>>> waiting_;
  std::minstd_rand dice_;  // small: libraries share little room for what is one per thread
};
thread_local UnderWay under_way;

// Every rank is hosted, so a collective is copying between buffers of this process. Lines list their members by
// rank; slots_of turns those into slots.
class SimulationEngine final : public Engine {
 public:
  explicit SimulationEngine(int64_t n) : Engine(n, all_ranks(n)) {}
  bool simulated() const override { return true; }
  std::string text() const override { return "a simulation of " + std::to_string(size()) + " ranks"; }

  Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool later) const override {
    auto wait = under_way.begin([=] { reduce_lines(line, mine, result, op); });
    if (later || !wait) return wait;
    wait();
    return {};
  }

  Wait all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const override {
    return under_way.begin([=] { gather_lines(line, mine, all, counts); });
  }

  Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                  const Counts& receive_counts) const override {
    return under_way.begin([=] { trade_on_lines(line, send, send_counts, receive, receive_counts); });
  }

  Wait broadcast(const Line& line, const Shards& buffers, int64_t source) const override {
    return under_way.begin([=] { broadcast_on_lines(line, buffers, source); });
  }

  std::string carrier(const Line&) const override { return "simulation"; }
  void barrier() const override {}

 private:
  static void reduce_lines(const Line& line, const Shards& mine, const Shards& result, ReduceOp op) {
    for (auto& members : lines_of(line)) {
      auto sum = result[members[0]];
      if (members.size() == 1) sum.copy_(mine[members[0]]);
      for (size_t j = 1; j < members.size(); ++j) reduce(sum, j == 1 ? mine[members[0]] : sum, mine[members[j]], op);
      for (size_t j = 1; j < members.size(); ++j) result[members[j]].copy_(sum);
    }
  }

  static void gather_lines(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) {
    for (auto& members : lines_of(line)) {
      for (auto to : members) {
        int64_t offset = 0;
        for (size_t j = 0; j < members.size(); ++j) {
          auto count = counts[to][j];
          if (count) all[to].narrow(0, offset, count).copy_(mine[members[j]]);
          offset += count;
        }
      }
    }
  }

  static void trade_on_lines(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                             const Counts& receive_counts) {
    for (auto& members : lines_of(line)) {
      std::vector<int64_t> read(members.size(), 0);  // how far each member's send buffer is dealt out
      for (size_t j = 0; j < members.size(); ++j) {
        auto to = members[j];
        int64_t offset = 0;
        for (size_t i = 0; i < members.size(); ++i) {
          auto count = receive_counts[to][i];
          TORCH_INTERNAL_ASSERT(count == send_counts[members[i]][j]);
          if (count) receive[to].narrow(0, offset, count).copy_(send[members[i]].narrow(0, read[i], count));
          offset += count;
          read[i] += count;
        }
      }
    }
  }

  static void broadcast_on_lines(const Line& line, const Shards& buffers, int64_t source) {
    for (auto& members : lines_of(line)) {
      for (auto slot : members) {
        if (slot != members[source]) buffers[slot].copy_(buffers[members[source]]);
      }
    }
  }

  // The distinct lines, each as the slots of its members. Slots are in ascending order of rank.
  static std::vector<std::vector<int64_t>> lines_of(const Line& line) {
    std::map<int64_t, int64_t> slot_of_rank;
    for (size_t slot = 0; slot < line.ranks.size(); ++slot) {
      slot_of_rank[line.ranks[slot][line.position[slot]]] = slot;
    }
    std::vector<std::vector<int64_t>> lines;
    for (size_t slot = 0; slot < line.ranks.size(); ++slot) {
      if (line.position[slot] != 0) continue;
      auto& members = lines.emplace_back();
      for (auto rank : line.ranks[slot]) members.push_back(slot_of_rank.at(rank));
    }
    return lines;
  }
};

}  // namespace

const Engine& simulation_of(int64_t n) {
  static auto* mutex = new std::mutex;
  static auto* engines = new std::map<int64_t, std::unique_ptr<SimulationEngine>>;
  TORCH_CHECK_VALUE(n >= 1, "[simulate] a world of ", n, " ranks was asked for. It needs at least 1.");
  std::lock_guard lock(*mutex);
  auto& engine = (*engines)[n];
  if (!engine) engine = std::make_unique<SimulationEngine>(n);
  return *engine;
}

Simulation::Simulation(int64_t n, Arrival arrival)
    : size_(n), scope_(n == 1 ? world_of_one() : simulation_of(n)), outer_(std::exchange(under_way.arrival, arrival)) {}

Simulation::~Simulation() {
  under_way.finish_all();
  under_way.arrival = outer_;
}

}  // namespace intarsia
