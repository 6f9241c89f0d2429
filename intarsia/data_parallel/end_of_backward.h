#pragma once
// Runs code when the current backward pass ends.

#include <functional>

namespace intarsia {

// Call this from a hook. One of the two runs, once: `done` when the last gradient of this pass has been computed, on
// the thread of backward(), where it may raise errors from it; or `failed` when the pass ends with an error, before
// that error reaches the caller. Exceptions of `failed` are lost.
//
// A pass may run inside another one: a node recomputes a part of its forward and calls backward on it. Then this refers
// to the outermost pass, which may have more gradients, or none.
void at_end_of_backward(std::function<void()> done, std::function<void()> failed);

}  // namespace intarsia
