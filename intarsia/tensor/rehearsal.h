#pragma once
// A scope in which explain() runs a step on meta tensors.
//
// Note [Tensors without data]
// A program may make them to fill them later; they say that they are on the meta device. explain rehearses a step with
// them: then they say that they are on the device of their mesh, as the real ones will be, so that what a model makes
// for itself mixes with them as it will. Many ops of LibTorch cannot run on the meta device; but what an op gives
// follows from its decision, so most need not run at all.

namespace intarsia {

// While it lives, this thread rehearses.
class RehearsalScope {
 public:
  RehearsalScope();
  ~RehearsalScope();
  RehearsalScope(const RehearsalScope&) = delete;
  RehearsalScope& operator=(const RehearsalScope&) = delete;
};
bool is_rehearsing();

}  // namespace intarsia
