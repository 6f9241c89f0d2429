#pragma once
// Functions of LibTorch that this library replaces in the whole process, and how to call the originals.
//
// Note [Interposed functions]
// Some functions of LibTorch read memory that a distributed tensor does not have, and are neither ops nor virtual:
// at::print, the errors of data_ptr() and storage(), the forwards of a few modules. LibTorch exports them, and the
// dynamic linker takes the first definition that it finds: ours, if a program or library names LibTorch after us. Our
// functions handle our tensors and pass all others to LibTorch's, which are the next definitions of the same names.

#include <string>

#include <c10/core/TensorImpl.h>

namespace intarsia {

// The mangled names of the functions that we replace.
namespace symbols {
constexpr auto kPrint = "_ZN2at5printERSoRKNS_6TensorEl";
constexpr auto kDataPtrError = "_ZNK3c1010TensorImpl27throw_data_ptr_access_errorEv";
constexpr auto kStorageError = "_ZNK3c1010TensorImpl26throw_storage_access_errorEv";
constexpr auto kLinear = "_ZN5torch2nn10LinearImpl7forwardERKN2at6TensorE";
constexpr auto kCrossMapLRN2d = "_ZN5torch2nn17CrossMapLRN2dImpl7forwardERKN2at6TensorE";
constexpr auto kMultiheadAttention = "_ZN5torch2nn22MultiheadAttentionImpl7forwardERKN2at6TensorES5_S5_S5_bS5_b";
constexpr auto kOrthogonal = "_ZN5torch2nn4init11orthogonal_EN2at6TensorEd";
constexpr auto kSparse = "_ZN5torch2nn4init7sparse_EN2at6TensorEdd";
constexpr auto kBatchNorm = "_ZN2at4_ops10batch_norm4callERKNS_6TensorERKSt8optionalIS2_ES8_S8_S8_bddb";
}  // namespace symbols

// LibTorch's definition of a function, ours left out; null if LibTorch does not export it.
void* find_definition(const char* symbol);

// The same for a function that we replace: an error if there is none.
void* next_definition(const char* symbol);
template <class Function>
Function next_definition(const char* symbol) {
  return reinterpret_cast<Function>(next_definition(symbol));
}

// Whether ours is the first definition of `symbol`. True where this library, or the program it is linked into, is
// searched for symbols before LibTorch; that is so unless LibTorch was loaded first (Python) or named first on the
// linker's command line.
bool is_first_definition(const char* symbol);

// Whether our versions of printing and of the errors of missing memory are in use: `std::cout << dtensor` shows the
// tensor, and dtensor.data_ptr() says what to call instead.
bool interposed();

// If they are not, stores an error text in the tensor, so that LibTorch's error also says what to call.
void explain_missing_memory(c10::TensorImpl& impl);

// The replaced functions that LibTorch does not export, as text; empty if it exports all.
std::string missing_definitions();

}  // namespace intarsia
