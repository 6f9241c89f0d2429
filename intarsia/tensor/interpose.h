#pragma once
// Functions of LibTorch that take our place in the process: printing, and the errors of data_ptr() and storage().

namespace intarsia {

// Whether they do: `std::cout << dtensor` shows the tensor, and dtensor.data_ptr() says what to call instead. True
// where this library, or the program it is linked into, is searched for symbols before LibTorch; that is so unless
// LibTorch was loaded first (Python) or named first on the linker's command line.
bool interposed();

}  // namespace intarsia
