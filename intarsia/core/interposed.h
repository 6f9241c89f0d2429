#pragma once
// Checks that the LibTorch functions that Intarsia interposes resolve to its definitions; see Note [Interposed
// functions].

#include <c10/core/TensorImpl.h>

namespace intarsia {

// Whether they are: `std::cout << dtensor` shows the tensor, and dtensor.data_ptr() says what to call instead. True
// where this library, or the program it is linked into, is searched for symbols before LibTorch; that is so unless
// LibTorch was loaded first (Python) or named first on the linker's command line.
bool interposed();

// Where they are not, stores an error text in the tensor, so that LibTorch's own error also says what to call.
void explain_missing_memory(c10::TensorImpl& impl);

}  // namespace intarsia
