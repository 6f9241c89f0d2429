#include "intarsia/simulation/simulation.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "intarsia/comm/engine.h"
#include "intarsia/comm/reduce.h"
#include "intarsia/simulation/arrivals.h"
#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

std::vector<int64_t> all_ranks(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Every rank is hosted, so a collective copies between buffers of this process. Lines list their members by rank;
// slots_of turns those into slots.
class SimulationEngine final : public Engine {
 public:
  explicit SimulationEngine(int64_t n) : Engine(n, all_ranks(n)) {}
  bool simulated() const override { return true; }
  std::string text() const override { return "a simulation of " + std::to_string(size()) + " ranks"; }

  Wait all_reduce(const Line& line, const Shards& mine, const Shards& result, ReduceOp op, bool later) const override {
    auto wait = begin(reduce_lines, line, mine, result, op);
    if (later || !wait) return wait;
    wait();
    return {};
  }

  Wait all_gather(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) const override {
    return begin(gather_lines, line, mine, all, counts);
  }

  Wait all_to_all(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                  const Counts& receive_counts) const override {
    return begin(trade_on_lines, line, send, send_counts, receive, receive_counts);
  }

  Wait reduce_scatter(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                      ReduceOp op) const override {
    return begin(reduce_and_deal, line, send, counts, result, op);
  }

  Wait broadcast(const Line& line, const Shards& buffers, int64_t source) const override {
    return begin(broadcast_on_lines, line, buffers, source);
  }

  std::string carrier(const Line&) const override { return "simulation"; }
  void barrier() const override {}

 private:
  using Slots = std::vector<int64_t>;

  // There are as many counts as pairs of ranks: only a collective that is really asynchronous copies them.
  template <class... Parameters, class... Arguments>
  static Wait begin(void (*move)(Parameters...), const Arguments&... arguments) {
    if (arrives() != Arrival::at_once) return arriving([=] { move(arguments...); });
    move(arguments...);
    return {};
  }

  // Lines that do the same, because their members bring the same: see Note [Twins].
  struct Alike {
    std::vector<Slots> lines;

    const Slots& first() const { return lines[0]; }
    // Member `j` of all lines, or all members.
    Slots all(size_t j) const {
      Slots slots;
      for (auto& line : lines) slots.push_back(line[j]);
      return slots;
    }
    Slots all() const {
      Slots slots;
      for (auto& line : lines) slots.insert(slots.end(), line.begin(), line.end());
      return slots;
    }
  };

  // The lines of all slots. A slot brings its tensor, and its counts if there are any.
  static std::vector<Alike> alike_lines(const Line& line, const Shards& brought, const Counts* counts) {
    auto lines = lines_of(line);
    auto hash = [&](size_t i) {
      uint64_t sum = 0;
      for (auto slot : lines[i]) sum = 31 * sum + twin_hash(brought[slot]);
      return sum;
    };
    auto same = [&](size_t i, size_t j) {
      for (size_t k = 0; k < lines[i].size(); ++k) {
        auto a = lines[i][k], b = lines[j][k];
        if (!are_twins(brought[a], brought[b]) || (counts && (*counts)[a] != (*counts)[b])) return false;
      }
      return true;
    };
    auto first = first_alike(lines.size(), hash, same);
    std::vector<Alike> alike(lines.size());
    for (size_t i = 0; i < lines.size(); ++i) alike[first[i]].lines.push_back(std::move(lines[i]));
    std::erase_if(alike, [](auto& group) { return group.lines.empty(); });
    return alike;
  }

  // Gives all these slots what `write` puts into the buffer of the first.
  template <class Write>
  static void fill(const Shards& buffers, const Slots& slots, Write write) {
    auto& first = buffers[slots[0]];
    Slots apart;
    {
      WriteForTwins twins;
      for (size_t i = 1; i < slots.size(); ++i) {
        if (may_become_twins(first, buffers[slots[i]])) {
          twins.add(first, buffers[slots[i]]);
        } else {
          apart.push_back(slots[i]);
        }
      }
      write(first);
    }
    for (auto slot : apart) buffers[slot].copy_(first);
  }

  // Copies `count` elements of a buffer, from `begin` on, to position `at` of another. There are many pairs of ranks,
  // and two views and an op for each cost far more than the bytes.
  static void copy_run(const at::Tensor& to, int64_t at, const at::Tensor& from, int64_t begin, int64_t count) {
    if (!count) return;
    bool is_memory = to.is_cpu() && from.is_cpu() && to.has_storage() && from.has_storage() &&
                     to.dtype() == from.dtype() && to.is_contiguous() && from.is_contiguous() && from.const_data_ptr();
    if (!is_memory) return void(to.narrow(0, at, count).copy_(from.narrow(0, begin, count)));
    auto size = static_cast<int64_t>(to.element_size());
    std::memcpy(static_cast<char*>(to.mutable_data_ptr()) + at * size,
                static_cast<const char*>(from.const_data_ptr()) + begin * size, count * size);
  }

  // The reduction of what the members of a line bring, in their order. There are several members.
  static void reduce_line(const Slots& members, const Shards& mine, at::Tensor sum, ReduceOp op) {
    if (members.size() == 1) sum.copy_(mine[members[0]]);
    for (size_t j = 1; j < members.size(); ++j) reduce(sum, j == 1 ? mine[members[0]] : sum, mine[members[j]], op);
  }

  static void reduce_lines(const Line& line, const Shards& mine, const Shards& result, ReduceOp op) {
    for (auto& alike : alike_lines(line, mine, nullptr)) {
      fill(result, alike.all(), [&](auto& sum) { reduce_line(alike.first(), mine, sum, op); });
    }
  }

  // Reductions are elementwise, so the result may be split afterwards.
  static void reduce_and_deal(const Line& line, const Shards& send, const Counts& counts, const Shards& result,
                              ReduceOp op) {
    for (auto& alike : alike_lines(line, send, &counts)) {
      auto& members = alike.first();
      auto sum = at::empty_like(send[members[0]]);
      reduce_line(members, send, sum, op);
      int64_t offset = 0;
      for (size_t j = 0; j < members.size(); ++j) {
        auto count = counts[members[0]][j];
        fill(result, alike.all(j), [&](auto& part) { part.copy_(sum.narrow(0, offset, count)); });
        offset += count;
      }
    }
  }

  static void gather_lines(const Line& line, const Shards& mine, const Shards& all, const Counts& counts) {
    for (auto& alike : alike_lines(line, mine, &counts)) {
      auto& members = alike.first();
      fill(all, alike.all(), [&](auto& whole) {
        int64_t offset = 0;
        for (size_t j = 0; j < members.size(); ++j) {
          auto count = counts[members[0]][j];
          copy_run(whole, offset, mine[members[j]], 0, count);
          offset += count;
        }
      });
    }
  }

  static void trade_on_lines(const Line& line, const Shards& send, const Counts& send_counts, const Shards& receive,
                             const Counts& receive_counts) {
    for (auto& alike : alike_lines(line, send, &send_counts)) {
      auto& members = alike.first();
      std::vector<int64_t> read(members.size(), 0);  // how far each member's send buffer has been read
      for (size_t j = 0; j < members.size(); ++j) {
        fill(receive, alike.all(j), [&](auto& got) {
          int64_t offset = 0;
          for (size_t i = 0; i < members.size(); ++i) {
            auto count = receive_counts[members[j]][i];
            TORCH_INTERNAL_ASSERT(count == send_counts[members[i]][j]);
            copy_run(got, offset, send[members[i]], read[i], count);
            offset += count;
            read[i] += count;
          }
        });
      }
    }
  }

  // If the source may not share its memory, the others share a copy.
  static void broadcast_on_lines(const Line& line, const Shards& buffers, int64_t source) {
    for (auto& members : lines_of(line)) {
      auto& given = buffers[members[source]];
      Slots others;
      for (auto slot : members) {
        if (may_become_twins(given, buffers[slot])) {
          become_twin(buffers[slot], given);
        } else if (slot != members[source]) {
          others.push_back(slot);
        }
      }
      if (!others.empty()) fill(buffers, others, [&](auto& first) { first.copy_(given); });
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
  using Key = std::pair<int64_t, std::thread::id>;
  static auto* mutex = new std::mutex;
  static auto* engines = new std::map<Key, std::unique_ptr<SimulationEngine>>;
  TORCH_CHECK_VALUE(n >= 1, "[simulate] a world of ", n, " ranks was asked for. It needs at least 1.");
  std::lock_guard lock(*mutex);
  auto& engine = (*engines)[{n, std::this_thread::get_id()}];
  if (!engine) engine = std::make_unique<SimulationEngine>(n);
  return *engine;
}

Simulation::Simulation(int64_t n, Arrival arrival)
    : size_(n), scope_(n == 1 ? world_of_one() : simulation_of(n)), outer_(set_arrival(arrival)) {}

Simulation::~Simulation() {
  arrive_all();
  set_arrival(outer_);
}

}  // namespace intarsia
