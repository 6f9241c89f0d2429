#pragma once
// Whether a guide (propagate/guide.h) decides about layouts in place of our own choices.

#include <cstdint>

namespace intarsia {

// The number of the guide that this thread asks, 0 if there is none. A new guide has a new number, since the advice of
// the one before does not apply to it.
int64_t current_guide_number();
inline bool is_guided() { return current_guide_number() != 0; }

// Sets the number of this process's guide: see set_guide.
void set_guide_number(int64_t number);

// While alive, the guide is not asked on this thread: inside a lowering, for example, which relies on our own choices.
class UnguidedScope {
 public:
  UnguidedScope();
  ~UnguidedScope();
  UnguidedScope(const UnguidedScope&) = delete;
  UnguidedScope& operator=(const UnguidedScope&) = delete;

 private:
  bool outer_;
};

}  // namespace intarsia
