#pragma once
// Code that runs when the backward pass that is under way ends.

#include <functional>

namespace intarsia {

// To be called from a hook. One of the two runs, once: `done` when the last gradient of this pass is there, on the thread of
// backward() and able to raise errors from it; or `failed` when the pass ends with an error, before that error reaches the
// caller. What `failed` throws is lost.
void at_end_of_backward(std::function<void()> done, std::function<void()> failed);

// For `done`: whether the pass that has ended runs inside another one, which recomputes a part of its forward.
bool is_inside_another_backward();

// For such a `done`: calls `go_on` when the node of the outer pass that recomputes has run, as a hook of the outer pass. LibTorch
// looks for hooks before a node runs, so the node must have one already; that of checkpoint has.
void after_recomputation(std::function<void()> go_on);

}  // namespace intarsia
