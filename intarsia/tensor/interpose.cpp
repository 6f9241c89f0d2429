#include "intarsia/tensor/interpose.h"

#include <ostream>

#include <ATen/core/Formatting.h>
#include <ATen/core/Tensor.h>

#include "intarsia/libtorch/interposition.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/dtensor.h"
#include "intarsia/tensor/printing.h"

namespace intarsia {
namespace {

bool is_ours(const c10::TensorImpl& impl) { return impl.key_set().has(kDTensorKey) || impl.key_set().has(kPerRankKey); }

// The advice which function to call instead.
std::string advice(const c10::TensorImpl& impl) {
  auto* body = const_cast<c10::TensorImpl&>(impl).get_backend_meta();
  if (!impl.key_set().has(kDTensorKey) || !body) {
    return c10::str("a tensor that stands for one per rank, of shape ", impl.sym_sizes(),
                    ", has no memory of its own. Use values_of(tensor), which has that of every hosted rank.");
  }
  return c10::str("a distributed tensor of shape ", impl.sizes(), ", ", str(*static_cast<DTensorBody*>(body)->layout),
                  ", has no memory of its own. Use to_local(tensor) or shards_of(tensor) for the local shard, or ",
                  "full_tensor(tensor) for the whole; is_alias_of(a, b) tells whether two tensors share memory. To "
                  "save a module, use ",
                  "checkpoint::save or full_state_dict(module), and to load one checkpoint::load or "
                  "load_full_state_dict(module, dict).");
}

}  // namespace

void take_along_interposed() {}

}  // namespace intarsia

std::ostream& at::print(std::ostream& stream, const at::Tensor& tensor, int64_t linesize) {
  if (tensor.defined() && intarsia::is_ours(*tensor.unsafeGetTensorImpl())) return stream << intarsia::str(tensor);
  using Print = std::ostream& (*)(std::ostream&, const at::Tensor&, int64_t);
  static const auto theirs = intarsia::next_definition<Print>(intarsia::symbols::kPrint);
  return theirs(stream, tensor, linesize);
}

void c10::TensorImpl::throw_data_ptr_access_error() const {
  TORCH_CHECK(!intarsia::is_ours(*this), "[data_ptr] ", intarsia::advice(*this));
  intarsia::next_definition<void (*)(const c10::TensorImpl*)>(intarsia::symbols::kDataPtrError)(this);
  TORCH_INTERNAL_ASSERT(false);  // its declaration says that it does not return
}

void c10::TensorImpl::throw_storage_access_error() const {
  TORCH_CHECK_NOT_IMPLEMENTED(!intarsia::is_ours(*this), "[storage] ", intarsia::advice(*this));
  intarsia::next_definition<void (*)(const c10::TensorImpl*)>(intarsia::symbols::kStorageError)(this);
  TORCH_INTERNAL_ASSERT(false);
}
