#pragma once
// The ledger lists the uses of LibTorch beyond its public interface, all of which are in this folder. Each relies on an
// assumption about LibTorch's inside, which another version may break silently; each comes with a check.
// docs/libtorch.md shows the table.

#include <string>
#include <vector>

namespace intarsia {

// One use of LibTorch's internals.
struct Assumption {
  const char* name;         // the file of libtorch/ that holds the use, and the name in errors
  const char* assumes;      // what LibTorch has to do
  const char* serves;       // what stops working otherwise
  const char* seen;         // the versions of LibTorch in which it held
  std::string (*broken)();  // what was found instead; empty if the assumption holds
};

// All assumptions, in the order in which they are checked.
const std::vector<Assumption>& ledger();

// Raises an error that names every broken assumption of `entries`, what was found instead, and what does not work.
void check_ledger(const std::vector<Assumption>& entries);

}  // namespace intarsia
