#include "intarsia/simulation/per_rank/per_rank.h"

#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>

#include "intarsia/core/foreign.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/simulation/per_rank/number.h"
#include "intarsia/start.h"

namespace intarsia {
namespace {

struct PerRankMeta final : c10::BackendMeta {
  explicit PerRankMeta(Shards values) : values(std::move(values)) {}
  Shards values;
};

// The form of a tensor; each number is per-rank if the ranks differ.
struct Form {
  c10::SymDimVector sizes, strides;
  c10::SymInt offset;
};

// The number that `get` finds in each value.
template <class Get>
c10::SymInt collected(const Shards& values, Get get) {
  std::vector<int64_t> numbers;
  for (auto& value : values) numbers.push_back(get(value));
  return per_rank_int(numbers);
}

Form form_of(const Shards& values) {
  Form form;
  auto ndim = values[0].dim();
  for (size_t slot = 1; slot < values.size(); ++slot) {
    TORCH_CHECK_VALUE(values[slot].dim() == ndim, "[per_rank] the simulated ranks hold tensors of ", ndim, " and of ",
                      values[slot].dim(), " dims: ", values[0].sizes(), " and ", values[slot].sizes(),
                      ". One tensor can stand only for tensors of as many dims; name the dims that an op is to drop.");
  }
  for (int64_t d = 0; d < ndim; ++d) {
    form.sizes.push_back(collected(values, [d](auto& value) { return value.size(d); }));
    form.strides.push_back(collected(values, [d](auto& value) { return value.stride(d); }));
  }
  form.offset = collected(values, [](auto& value) { return value.storage_offset(); });
  return form;
}

bool same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

bool shows(const c10::TensorImpl& impl, const Shards& values) {
  if (!impl.has_symbolic_sizes_strides()) {
    return std::all_of(values.begin(), values.end(),
                       [&](auto& value) { return value.sizes() == impl.sizes() && value.strides() == impl.strides(); });
  }
  auto form = form_of(values);
  auto same = [](c10::SymIntArrayRef a, c10::SymIntArrayRef b) { return c10::str(a) == c10::str(b); };
  return same(form.sizes, impl.sym_sizes()) && same(form.strides, impl.sym_strides());
}

void show_form(c10::TensorImpl& impl, const Shards& values) {
  auto& first = values[0];
  bool equal = std::all_of(values.begin() + 1, values.end(), [&](auto& value) { return same_form(first, value); });
  if (equal && !impl.has_symbolic_sizes_strides()) {
    impl.set_sizes_and_strides(first.sizes(), first.strides(), first.storage_offset());
    return;
  }
  auto form = form_of(values);
  impl.set_sizes_and_strides(c10::SymIntArrayRef(form.sizes), c10::SymIntArrayRef(form.strides), form.offset);
}

// Answers questions that need one number for all ranks if the ranks agree, and else raises an error with their values.
class PerRankImpl final : public c10::TensorImpl {
 public:
  PerRankImpl(caffe2::TypeMeta dtype, c10::Device device)
      : TensorImpl(c10::DispatchKeySet(kPerRankKey) | autocast_keys(device), dtype, device) {}

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool may_change) const override {
    auto copy = c10::make_intrusive<PerRankImpl>(dtype(), device());
    copy_tensor_metadata(this, copy.get(), version, may_change);
    return copy;
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool may_change) const override {
    return shallow_copy_and_detach(static_cast<const c10::VariableVersion&>(version), may_change);
  }

 protected:
  c10::IntArrayRef sizes_custom() const override {
    auto sizes = c10::asIntArrayRefSlowOpt(sym_sizes_default());
    return sizes ? *sizes : refuse<c10::IntArrayRef>("sizes");
  }
  c10::IntArrayRef strides_custom() const override {
    auto strides = c10::asIntArrayRefSlowOpt(sym_strides_default());
    return strides ? *strides : refuse<c10::IntArrayRef>("strides");
  }
  int64_t size_custom(int64_t dim) const override {
    auto size = sym_size_custom(dim < 0 ? dim + dim_custom() : dim).maybe_as_int();
    return size ? *size : refuse<int64_t>("size");
  }
  int64_t numel_custom() const override {
    auto numel = sym_numel_default().maybe_as_int();
    return numel ? *numel : refuse<int64_t>("numel");
  }
  int64_t storage_offset_custom() const override {
    auto offset = sym_storage_offset_default().maybe_as_int();
    return offset ? *offset : refuse<int64_t>("storage_offset");
  }
  c10::SymBool sym_is_contiguous_custom(c10::MemoryFormat format) const override {
    return every([format](auto& value) { return value.is_contiguous(format); });
  }
  bool is_strides_like_custom(c10::MemoryFormat format) const override {
    return every([format](auto& value) { return value.unsafeGetTensorImpl()->is_strides_like(format); });
  }
  // Autograd compares the strides of dense tensors number by number. It accepts others if they are contiguous.
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override { return false; }

 private:
  const Shards& values() const {
    return static_cast<PerRankMeta*>(const_cast<PerRankImpl*>(this)->get_backend_meta())->values;
  }

  template <class Ask>
  bool every(Ask ask) const {
    return std::all_of(values().begin(), values().end(), ask);
  }

  template <class Result>
  [[noreturn]] Result refuse(const char* what) const {
    auto& values = this->values();
    std::string shapes;
    for (size_t slot = 0; slot < values.size() && slot < 16; ++slot) {
      shapes += (slot ? ", " : "") + c10::str(values[slot].sizes());
    }
    TORCH_CHECK_VALUE(false, "[", what, "] has no one answer: the tensors of the simulated ranks have the shapes ",
                      shapes, values.size() > 16 ? " and so on" : "", ". Ask for sym_", what,
                      ", take the tensors apart with shards_of or values_of, or cut over a mesh that divides.");
  }
};

}  // namespace

at::Tensor per_rank(Shards values) {
  TORCH_CHECK_VALUE(!values.empty(), "[per_rank] no tensors are given. Give one for every hosted rank.");
  for (auto& value : values) {
    check_no_wrapper(value, "per_rank");
    TORCH_CHECK_VALUE(value.dtype() == values[0].dtype(), "[per_rank] the simulated ranks hold tensors of ",
                      values[0].dtype(), " and of ", value.dtype(),
                      ". One tensor can stand only for tensors of one dtype.");
  }
  start();
  // Autograd must replay views instead of calling as_strided with the numbers of one rank.
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  auto device = values[0].is_meta() ? c10::Device(at::kCPU) : values[0].device();  // see Note [Tensors without data]
  auto impl = c10::make_intrusive<PerRankImpl>(values[0].dtype(), device);
  show_form(*impl, values);
  impl->set_storage_access_should_throw();
  explain_missing_memory(*impl);
  impl->set_backend_meta(c10::make_intrusive<PerRankMeta>(std::move(values)));
  return at::Tensor(std::move(impl));
}

bool is_per_rank(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kPerRankKey); }

const Shards& values_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_per_rank(tensor),
                   "[values_of] the tensor is not one per rank. Only to_local in a simulation makes such.");
  return static_cast<PerRankMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta())->values;
}

at::Tensor value_at(const at::Tensor& tensor, size_t slot) {
  return is_per_rank(tensor) ? values_of(tensor)[slot] : tensor;
}

bool values_differ(const at::Tensor& per_rank) { return per_rank.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

void set_values(const at::Tensor& tensor, Shards values) {
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (!shows(impl, values)) show_form(impl, values);
  impl.set_backend_meta(c10::make_intrusive<PerRankMeta>(std::move(values)));
}

void become_number(const at::Tensor& tensor, Shards values) {
  // Type promotion prefers tensors over numbers; this flag marks a tensor as a number.
  for (auto& value : values) value.unsafeGetTensorImpl()->set_wrapped_number(true);
  auto number = per_rank(std::move(values));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(number.getIntrusivePtr());
}

}  // namespace intarsia
