#pragma once
// Functions of LibTorch that this library interposes: printing, and the errors of data_ptr() and storage().

namespace intarsia {

// Does nothing. Its mention makes a linker take the file with those functions along from a static library.
void take_along_interposed();

}  // namespace intarsia
