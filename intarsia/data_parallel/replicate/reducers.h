#pragma once
// The living reducers of each axis: one of them ends the steps of those that still have gradients to average.

#include <memory>
#include <vector>

namespace intarsia {

class CollectiveOrder;
class Reducer;

// Registers a reducer.
void add_reducer(const CollectiveOrder& order, std::weak_ptr<Reducer> reducer);

// In the order in which they were added, the same on all ranks. A copy: simulations on other threads add theirs
// meanwhile.
std::vector<std::shared_ptr<Reducer>> reducers_along(const CollectiveOrder& order);

}  // namespace intarsia
