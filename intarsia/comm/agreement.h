#pragma once
// Ranks exchange numbers and texts that are no part of a tensor: to compare what they are about to do, or to tell what
// went wrong. The only way to do so: a trace lists them as agreements, and no policy for implicit moves sees them.
//
// All members of a line call these together. Simulated ranks have nothing to exchange: all give the same.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/comm/axis.h"

namespace intarsia {

// The numbers that each member of our line passes, in the order of the line. All pass equally many.
std::vector<std::vector<int64_t>> exchange_numbers(const Axis& axis, const std::vector<int64_t>& mine);
std::vector<int64_t> exchange_numbers(const Axis& axis, int64_t mine);

// The same, begun now and finished later.
class NumbersExchange {
 public:
  NumbersExchange(const Axis& axis, const std::vector<int64_t>& mine);
  std::vector<std::vector<int64_t>> finish();

 private:
  int64_t members_, count_;
  at::Tensor mine_, all_;  // none: nothing travels
  std::vector<int64_t> same_;
  Wait wait_;
};

// The highest of the numbers that the members give.
int64_t exchange_max(const Axis& axis, int64_t mine);

// The same for texts of any length: one message if all are short, else two.
std::vector<std::string> exchange_texts(const Axis& axis, const std::string& mine);

}  // namespace intarsia
