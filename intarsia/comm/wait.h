#pragma once
// Collectives that are under way.

#include <functional>
#include <utility>

namespace intarsia {

// Finishes a collective that is under way. Empty if it has finished already.
using Wait = std::function<void()>;

// `wait` and, when that is over, `last`: at once if there is nothing to wait for.
template <class Last>
Wait then(Wait wait, Last last) {
  if (wait) return [wait = std::move(wait), last = std::move(last)] { wait(), last(); };
  last();
  return {};
}

}  // namespace intarsia
