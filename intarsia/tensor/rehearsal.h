#pragma once
// A scope in which explain() runs a step on meta tensors.
//
// Note [Tensors without data]
// A program may create tensors on the meta device to fill them later; they report the meta device. explain rehearses a
// step with them: then they report the device of their mesh, as the real ones will, so that tensors that a model
// creates meanwhile mix with them as in a real step. Many ops of LibTorch cannot run on the meta device, but the form
// of an op's result follows from its decision, so most need not run at all.

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
