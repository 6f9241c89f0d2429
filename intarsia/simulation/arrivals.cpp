#include "intarsia/simulation/arrivals.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace intarsia {
namespace {

// Collectives that were started on this thread and have not moved their bytes yet.
struct PendingCollectives {
  Arrival arrival = Arrival::at_once;
  std::vector<std::shared_ptr<std::function<void()>>> waiting;
  std::minstd_rand dice;  // small: libraries have little room for thread-local data
};
thread_local PendingCollectives under_way;

void finish(std::function<void()>& begun) {
  if (auto move = std::exchange(begun, nullptr)) move();
}

void finish_some() {
  auto& waiting = under_way.waiting;
  std::shuffle(waiting.begin(), waiting.end(), under_way.dice);
  for (auto left = under_way.dice() % (waiting.size() + 1); waiting.size() > left; waiting.pop_back())
    finish(*waiting.back());
}

}  // namespace

Arrival arrives() { return under_way.arrival; }
Arrival set_arrival(Arrival arrival) { return std::exchange(under_way.arrival, arrival); }

Wait arriving(std::function<void()> move) {
  if (arrives() == Arrival::at_once) {
    move();
    return {};
  }
  if (arrives() == Arrival::at_random) finish_some();
  auto begun = std::make_shared<std::function<void()>>(std::move(move));
  if (arrives() == Arrival::at_random) under_way.waiting.push_back(begun);
  return [begun] { finish(*begun); };
}

void arrive_all() {
  for (auto& begun : std::exchange(under_way.waiting, {})) finish(*begun);
}

}  // namespace intarsia
