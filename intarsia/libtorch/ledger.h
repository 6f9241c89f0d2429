#pragma once
// The ledger: uses of LibTorch beyond its public interface, those in this folder. Each use is an assumption
// about how LibTorch works inside, which another version may break without a word, so each can be checked.
// docs/libtorch.md shows the table.

#include <string>
#include <vector>

namespace intarsia {

// One use of LibTorch's internals.
struct Assumption {
  const char* name;         // the file of libtorch/ that holds the use, and the name in errors
  const char* assumes;      // what LibTorch has to do
  const char* serves;       // what stops working where it does not
  const char* seen;         // the versions of LibTorch in which it held
  std::string (*broken)();  // what is found instead; empty where the assumption holds
};

// All of them, in the order in which they are checked.
const std::vector<Assumption>& ledger();

// An error that names every broken assumption of `entries`, what was found, and what does not work.
void check_ledger(const std::vector<Assumption>& entries);

}  // namespace intarsia
