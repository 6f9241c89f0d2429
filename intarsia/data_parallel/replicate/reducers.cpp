#include "intarsia/data_parallel/replicate/reducers.h"

#include <map>
#include <mutex>
#include <utility>

#include "intarsia/data_parallel/collective_order.h"
#include "intarsia/data_parallel/replicate/reducer.h"

namespace intarsia {
namespace {

struct Reducers {
  std::mutex mutex;
  std::map<const CollectiveOrder*, std::vector<std::weak_ptr<Reducer>>>
      along;  // a CollectiveOrder lives as long as the process
};
Reducers& all_reducers() {
  static auto* all = new Reducers;
  return *all;
}

}  // namespace

void add_reducer(const CollectiveOrder& order, std::weak_ptr<Reducer> reducer) {
  std::lock_guard lock(all_reducers().mutex);
  all_reducers().along[&order].push_back(std::move(reducer));
}

std::vector<std::shared_ptr<Reducer>> reducers_along(const CollectiveOrder& order) {
  std::vector<std::shared_ptr<Reducer>> living;
  std::lock_guard lock(all_reducers().mutex);
  auto& reducers = all_reducers().along[&order];
  std::erase_if(reducers, [](auto& weak) { return weak.expired(); });
  for (auto& weak : reducers) {
    if (auto reducer = weak.lock()) living.push_back(std::move(reducer));
  }
  return living;
}

}  // namespace intarsia
