#include "intarsia/rules/rule.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

namespace intarsia {

TensorForm form_of(const at::Tensor& tensor) {
  TensorForm form;
  if (!tensor.defined()) return form;
  form.defined = true;
  form.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  form.strides.assign(tensor.strides().begin(), tensor.strides().end());
  form.dtype = tensor.scalar_type();
  return form;
}

int64_t TensorForm::numel() const {
  int64_t n = 1;
  for (auto extent : sizes) n *= extent;
  return n;
}

int OpCall::arg_index(const char* name) const {
  auto index = schema.argumentIndexWithName(name);
  return index ? *index : -1;
}

const c10::IValue& OpCall::arg(const char* name) const {
  auto index = arg_index(name);
  TORCH_INTERNAL_ASSERT(index >= 0, schema.name(), " has no argument ", name);
  return args[index];
}

int64_t OpCall::int_arg(const char* name, int64_t otherwise) const {
  auto index = arg_index(name);
  return index < 0 || args[index].isNone() ? otherwise : args[index].toInt();
}

bool OpCall::bool_arg(const char* name, bool otherwise) const {
  auto index = arg_index(name);
  return index < 0 || args[index].isNone() ? otherwise : args[index].toBool();
}

std::vector<int64_t> OpCall::dims_arg(const char* name, int64_t ndim) const {
  auto index = arg_index(name);
  std::vector<int64_t> dims;
  if (index >= 0 && args[index].isInt()) dims = {args[index].toInt()};
  if (index >= 0 && args[index].isIntList()) dims = args[index].toIntVector();
  if (dims.empty()) {
    for (int64_t d = 0; d < ndim; ++d) dims.push_back(d);
    return dims;
  }
  for (auto& d : dims) d = c10::maybe_wrap_dim(d, ndim);
  return dims;
}

std::string str(const Row& row) {
  std::string text;
  for (size_t i = 0; i < row.in.size(); ++i) text += (i ? ", " : "") + str(row.in[i]);
  text += " -> ";
  for (size_t i = 0; i < row.out.size(); ++i) text += (i ? ", " : "") + str(row.out[i]);
  return text;
}

Rule&& Rule::with_size_args(std::vector<std::string> names) && {
  size_args = std::move(names);
  return std::move(*this);
}

Rule&& Rule::with_local(std::function<void(LocalCall&)> function) && {
  local = std::move(function);
  return std::move(*this);
}

c10::IValue local_size(const c10::Argument& argument, c10::ArrayRef<int64_t> local_shape) {
  bool list = argument.type()->kind() == c10::TypeKind::ListType;
  return list ? c10::IValue(local_shape) : c10::IValue(local_shape.empty() ? 1 : local_shape[0]);
}

void LocalCall::call_plain() { op.callBoxed(stack); }

}  // namespace intarsia
