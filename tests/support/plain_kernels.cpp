// Keeps oneDNN from the CPU's matrix units (AMX) in the tests.
//
// On such a CPU, plain LibTorch's 16-bit convolutions leave the outputs that no input reaches (strided and transposed
// ones have them) as they were in memory, so that there is nothing to compare with: plain LibTorch differs from itself
// from call to call.
#include <cstdlib>

namespace {

// oneDNN asks once, at its first primitive. A user's own choice stays.
[[maybe_unused]] const int limited = ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", /*overwrite=*/0);

}  // namespace
