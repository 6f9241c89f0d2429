#pragma once
// The handle of an asynchronous collective.

#include <functional>
#include <utility>

namespace intarsia {

// Finishes a collective. Empty if it has finished.
using Wait = std::function<void()>;

// `wait`, followed by `last`: at once if there is nothing to wait for.
template <class Last>
Wait then(Wait wait, Last last) {
  if (wait) return [wait = std::move(wait), last = std::move(last)] { wait(), last(); };
  last();
  return {};
}

}  // namespace intarsia
