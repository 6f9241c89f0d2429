#pragma once
// Agreements: ranks exchange numbers and texts that are no part of a tensor, to compare what they are about to do, or
// to report what went wrong. Traced as agreements. For real processes, which host one slot of a mesh; all members of a
// line call these together.

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/comm/axis.h"

namespace intarsia {

// The numbers that each member of our line passes, in the order of the line. All pass equally many.
std::vector<std::vector<int64_t>> exchange_numbers(const Axis& axis, const std::vector<int64_t>& mine);
std::vector<int64_t> exchange_numbers(const Axis& axis, int64_t mine);

// The same for texts of any length: one message if all are short, else two.
std::vector<std::string> exchange_texts(const Axis& axis, const std::string& mine);

}  // namespace intarsia
