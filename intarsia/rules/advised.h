#pragma once
// Whether a guide (propagate/guide.h) decides about layouts in place of our own choices.

#include <cstdint>

namespace intarsia {

// The number of the guide that this thread asks, 0 if there is none. What one has advised says nothing of the next.
int64_t current_guide_number();
inline bool is_guided() { return current_guide_number() != 0; }

// Of the guide of this process: see set_guide.
void set_guide_number(int64_t number);

// While it lives, the guide is not asked on this thread: inside of a lowering, say, which is made for our own choices.
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
