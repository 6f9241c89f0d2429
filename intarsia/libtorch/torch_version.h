#pragma once
// The version of LibTorch that is loaded, beside the one that this library was compiled for and those it was tried
// with.

#include <string>

namespace intarsia {

struct TorchVersion {
  int major, minor, patch;
  bool operator==(const TorchVersion&) const = default;
};
std::string str(const TorchVersion& version);  // 2.13.0

TorchVersion compiled_torch_version();
TorchVersion loaded_torch_version();

// A sentence if a library that was compiled for one version cannot work with the one that is loaded: LibTorch keeps its
// C++ interface within a minor version only. Empty if it can. This library asks as soon as it is loaded.
std::string misfit(const TorchVersion& compiled, const TorchVersion& loaded);

// A sentence if this library was never tried with a version. Empty if it was.
std::string untried(const TorchVersion& version);

// Warns once if this library was never tried with LibTorch's version; an error if INTARSIA_STRICT_VERSION is 1.
void check_torch_version();

}  // namespace intarsia
