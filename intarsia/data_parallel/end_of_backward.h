#pragma once
// Code that runs when the backward pass that is under way ends.

#include <functional>

namespace intarsia {

// To be called from a hook. One of the two runs, once: `done` when the last gradient of this pass is there, on the
// thread of backward() and able to raise errors from it; or `failed` when the pass ends with an error, before that
// error reaches the caller. What `failed` throws is lost.
//
// A pass may run inside another one: a node recomputes a part of its forward and calls backward on it. Then the
// outermost pass is meant, which may have more gradients, or none.
void at_end_of_backward(std::function<void()> done, std::function<void()> failed);

}  // namespace intarsia
