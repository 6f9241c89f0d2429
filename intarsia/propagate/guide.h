#pragma once
// Layouts that somebody else would choose, for programs that count on them: under the drop-in, those of PyTorch's DTensor.
//
// A guide is followed where the rows of the op's rule allow what it advises, and where all tensors are to be whole, which is
// always right. So it decides about layouts and about what is sent, never about values. Without advice, or with advice that no
// rows allow, the choice is our own.

#include <functional>
#include <optional>
#include <vector>

#include "intarsia/propagate/choose.h"

namespace intarsia {

struct Advice {
  std::vector<std::optional<Placements>> in;   // per tensor argument; none where it is plain or undefined
  std::vector<std::optional<Placements>> out;  // per result; none where it is not defined
};
// All ranks must get the same answer. Decisions are kept, so it is asked once per kind of call.
using Guide = std::function<std::optional<Advice>(const Question& question)>;

// For the whole process. Without a function there is no guide.
void set_guide(Guide guide);

// While it lives, the guide is not asked on this thread: inside of a way, say, which is made for our own choices.
class UnguidedScope {
 public:
  UnguidedScope();
  ~UnguidedScope();
  UnguidedScope(const UnguidedScope&) = delete;
  UnguidedScope& operator=(const UnguidedScope&) = delete;

 private:
  bool outer_;
};

// The number of the guide that this thread asks, 0 if there is none. What one has advised says nothing of the next.
int64_t current_guide_number();
inline bool is_guided() { return current_guide_number() != 0; }

// What it says of a call.
std::optional<Advice> advice_for(const Question& question);

}  // namespace intarsia
