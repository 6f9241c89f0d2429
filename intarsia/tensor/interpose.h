#pragma once
// The functions of LibTorch that this library interposes: printing, and the errors of data_ptr() and storage().

namespace intarsia {

// Does nothing. A reference to it makes a linker include the file with those functions from a static library.
void take_along_interposed();

}  // namespace intarsia
