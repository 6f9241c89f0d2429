#pragma once
// Scenes that a rank plays under the launcher, so that a test outside can watch what it does and how it ends.

#include <string>

namespace intarsia {

// The exit status. An error is printed and gives 3.
int play(const std::string& name);

}  // namespace intarsia
