#include "intarsia/libtorch/torch_version.h"

#include <cstdio>
#include <cstdlib>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "intarsia/libtorch/interposition.h"

namespace intarsia {
namespace {

constexpr int kOldestTried = 13, kNewestTried = 15;  // of LibTorch 2

// LibTorch's stable C interface tells the version in its upper bytes.
TorchVersion unpacked(uint64_t version) {
  auto byte = [&](int i) { return static_cast<int>(version >> (56 - 8 * i) & 0xff); };
  return {byte(0), byte(1), byte(2)};
}

// Missing symbols, or wrong numbers, would come next: so it is said before anything else happens.
const bool fits = [] {
  auto text = misfit(compiled_torch_version(), loaded_torch_version());
  if (text.empty()) return true;
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(1);
}();

}  // namespace

std::string str(const TorchVersion& v) { return c10::str(v.major, ".", v.minor, ".", v.patch); }

TorchVersion compiled_torch_version() { return {TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH}; }

TorchVersion loaded_torch_version() {
  auto* found = find_definition("aoti_torch_abi_version");
  return found ? unpacked(reinterpret_cast<uint64_t (*)()>(found)()) : compiled_torch_version();
}

std::string misfit(const TorchVersion& compiled, const TorchVersion& loaded) {
  if (compiled.major == loaded.major && compiled.minor == loaded.minor) return "";
  return c10::str("[intarsia] this library was built for LibTorch ", str(compiled), ", but LibTorch ", str(loaded),
                  " is loaded. Use a LibTorch ", compiled.major, ".", compiled.minor, ", or build it for this one.");
}

std::string untried(const TorchVersion& version) {
  if (version.major == 2 && kOldestTried <= version.minor && version.minor <= kNewestTried) return "";
  return c10::str("[start] LibTorch ", str(version), " is ",
                  version.major > 2 || version.minor > kNewestTried ? "newer" : "older",
                  " than those that this library was tried with, 2.", kOldestTried, " to 2.", kNewestTried, ".");
}

void check_torch_version() {
  auto text = untried(loaded_torch_version());
  if (text.empty()) return;
  auto* strict = std::getenv("INTARSIA_STRICT_VERSION");
  TORCH_CHECK(!strict || std::string(strict) != "1", text, " Use one of these, or leave INTARSIA_STRICT_VERSION out.");
  TORCH_WARN_ONCE(text, " What it uses of LibTorch's internals has passed its checks (docs/libtorch.md).");
}

}  // namespace intarsia
