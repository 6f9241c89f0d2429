#include "intarsia/rules/rule.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <algorithm>
#include <numeric>

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

int64_t OpCall::dim_arg(const char* name, int64_t ndim, int64_t otherwise) const {
  return c10::maybe_wrap_dim(int_arg(name, otherwise), ndim);
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
  return row.if_advised ? text + "  (if advised)" : text;
}

std::vector<int64_t> JointCall::output_shape(size_t i, size_t slot) const {
  auto shape = local_shape(*out[i], call.outputs[i].sizes, mesh.slots()[slot].coordinate);
  return {shape.begin(), shape.end()};
}

Rule&& Rule::with_size_args(std::vector<std::string> names) && {
  local.size_args = std::move(names);
  return std::move(*this);
}

Rule&& Rule::with_local(std::function<void(LocalCall&)> run) && {
  local.run = std::move(run);
  return std::move(*this);
}

Rule&& Rule::with_shapes(std::function<std::vector<std::vector<int64_t>>(const OpCall&)> shapes) && {
  form.shapes = std::move(shapes);
  return std::move(*this);
}

Rule&& Rule::with_dtypes(std::function<std::vector<c10::ScalarType>(const OpCall&)> dtypes) && {
  form.dtypes = std::move(dtypes);
  return std::move(*this);
}

Rule&& Rule::with_forms(std::function<std::vector<TensorForm>(const OpCall&)> forms) && {
  form.whole = std::move(forms);
  return std::move(*this);
}

Rule&& Rule::checking(std::function<void(const OpCall&)> check) && {
  form.check = std::move(check);
  return std::move(*this);
}

Rule&& Rule::contiguous() && {
  form.strides = [shapes = form.shapes](const OpCall& call) {
    auto strides = shapes(call);
    for (auto& result : strides) {
      auto dense = c10::contiguous_strides(result);
      result.assign(dense.begin(), dense.end());
    }
    return strides;
  };
  return std::move(*this);
}

// The strides of a dense tensor whose dims are in this order in memory.
static std::vector<int64_t> strides_in_order(const std::vector<int64_t>& shape, const std::vector<int64_t>& order) {
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= std::max<int64_t>(shape[*dim], 1);
  }
  return strides;
}

Rule&& Rule::ordered(std::function<std::vector<int64_t>(const OpCall&)> order) && {
  form.strides = [shapes = form.shapes, order = std::move(order)](const OpCall& call) {
    auto results = shapes(call);
    results[0] = strides_in_order(results[0], order(call));
    return results;
  };
  return std::move(*this);
}

Rule&& Rule::column_major(size_t result) && {
  form.strides = [shapes = form.shapes, result](const OpCall& call) {
    auto results = shapes(call);
    for (size_t i = 0; i < results.size(); ++i) {
      std::vector<int64_t> order(results[i].size());
      std::iota(order.begin(), order.end(), 0);
      if (i == result && order.size() > 1) std::swap(order.end()[-1], order.end()[-2]);
      results[i] = strides_in_order(results[i], order);
    }
    return results;
  };
  return std::move(*this);
}

Rule&& Rule::like_input(size_t input) && {
  form.shapes = [input](const OpCall& call) {
    auto& sizes = call.inputs[input].sizes;
    return std::vector<std::vector<int64_t>>{{sizes.begin(), sizes.end()}};
  };
  form.dtypes = [input](const OpCall& call) { return std::vector<c10::ScalarType>{call.inputs[input].dtype}; };
  return std::move(*this);
}

Rule&& Rule::refusing(std::vector<size_t> inputs) && {
  local.refusable = [inputs = std::move(inputs)](const OpCall&) { return inputs; };
  return std::move(*this);
}

Rule&& Rule::refusing_where(std::function<std::vector<size_t>(const OpCall&)> inputs) && {
  local.refusable = std::move(inputs);
  return std::move(*this);
}

Rule&& Rule::with_joint(std::function<Rows(const OpCall&)> rows, std::function<void(JointCall&)> run) && {
  joint = {std::move(rows), std::move(run)};
  return std::move(*this);
}

c10::IValue local_size(const c10::Argument& argument, c10::ArrayRef<int64_t> local_shape) {
  bool list = argument.type()->kind() == c10::TypeKind::ListType;
  return list ? c10::IValue(local_shape) : c10::IValue(local_shape.empty() ? 1 : local_shape[0]);
}

void LocalCall::call_plain() { op.callBoxed(stack); }

}  // namespace intarsia
