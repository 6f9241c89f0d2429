#include "intarsia/propagate/forms.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "intarsia/comm/interrupts.h"
#include "intarsia/libtorch/dispatch_keys.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;
using Forms = std::vector<TensorForm>;

// Stand-ins for a tensor: one of its form without data; a tiny one with data, for ops that need some; or one of its
// shape whose elements are all one zero in memory. Zero is a valid index into every tensor, but cannot be a divisor.
enum class StandIn { empty, zero, one, zeros };

at::Tensor stand_in(const at::Tensor& tensor, StandIn kind) {
  if (!tensor.defined() || (!tensor.key_set().has(kDTensorKey) && tensor.dim() == 0)) return tensor;
  if (kind == StandIn::empty) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  }
  if (kind == StandIn::zeros) return at::zeros({}, tensor.options().device(at::kCPU)).expand(tensor.sizes());
  return at::full(std::vector<int64_t>(tensor.dim(), 1), kind == StandIn::one ? 1 : 0,
                  tensor.options().device(at::kCPU));
}

c10::IValue stand_in(const c10::IValue& value, StandIn kind) {
  if (value.isDevice() && kind == StandIn::empty) return c10::Device(at::kMeta);
  if (value.isTensor()) return stand_in(value.toTensor(), kind);
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(stand_in(tensor, kind));
    return tensors;
  }
  bool optionals = value.isList() && value.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
  if (!optionals) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& item : value.toListRef()) {
    list.push_back(item.isTensor() ? std::optional(stand_in(item.toTensor(), kind)) : std::nullopt);
  }
  return list;
}

Stack stand_ins(c10::ArrayRef<c10::IValue> args, StandIn kind) {
  Stack stack;
  for (auto& value : args) stack.push_back(stand_in(value, kind));
  return stack;
}

std::optional<Forms> read_forms(const Stack& stack) {
  Forms forms;
  for (auto& value : stack) {
    if (value.isTensor()) {
      forms.push_back(form_of(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) forms.push_back(form_of(tensor));
    } else if (!value.isNone()) {
      return std::nullopt;
    } else {
      forms.emplace_back();
    }
  }
  return forms;
}

// The rule knows the shapes. If it does not know the dtypes, the op runs on tensors of one element to find them.
std::optional<Forms> forms_by_rule(const FormQuestion& q) {
  if (!q.rule || !q.rule->form.shapes) return std::nullopt;
  auto& rule = *q.rule;
  Forms forms;
  OpCall seen{q.functional.schema(), q.args, q.inputs, forms};
  auto shapes = rule.form.shapes(seen);
  if (shapes.empty()) return std::nullopt;
  if (rule.form.dtypes) {
    for (auto dtype : rule.form.dtypes(seen)) {
      forms.emplace_back().dtype = dtype;
      forms.back().defined = dtype != c10::ScalarType::Undefined;
    }
  } else {
    auto stack = stand_ins(q.args, rule.form.from_ones ? StandIn::one : StandIn::zero);
    q.functional.callBoxed(stack);
    auto told = read_forms(stack);
    if (!told) return std::nullopt;
    forms = std::move(*told);
  }
  auto told = rule.form.strides ? rule.form.strides(seen) : std::vector<std::vector<int64_t>>();
  for (size_t i = 0; i < forms.size(); ++i) {
    if (!forms[i].defined) continue;
    auto dense = c10::contiguous_strides(shapes[i]);
    std::vector<int64_t> strides(dense.begin(), dense.end());
    if (!told.empty()) strides = told[i];
    for (auto& input : q.inputs) {
      if (!told.empty() || !rule.aligned || !input.defined ||
          at::IntArrayRef(input.sizes) != at::IntArrayRef(shapes[i]))
        continue;
      strides = at::infer_dense_strides(shapes[i], input.strides);
      break;
    }
    forms[i].sizes.assign(shapes[i].begin(), shapes[i].end());
    forms[i].strides.assign(strides.begin(), strides.end());
  }
  return forms;
}

std::optional<Forms> forms_by_op(const FormQuestion& q) {
  auto& returns = q.op.schema().returns();
  auto is_number = [](auto& result) { return result.type()->kind() == c10::TypeKind::NumberType; };
  if (std::any_of(returns.begin(), returns.end(), is_number)) return std::nullopt;  // item(): the value is the result
  // A rule that gives strides describes the plain op on this device. In Python, some meta kernels are written in
  // Python, and some of these give the strides of another device.
  if (q.rule && q.rule->form.strides) {
    if (auto told = forms_by_rule(q)) return told;
  }
  // Not tried: throwing an error takes much longer than all the rest of a decision.
  if (!q.op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return forms_by_rule(q);
  auto stack = stand_ins(q.args, StandIn::empty);
  at::AutoDispatchBelowADInplaceOrView guard;
  try {
    q.op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return forms_by_rule(q);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {
    // In Python, Python code infers the shapes of some ops, and may raise any error where it cannot.
    if (is_interrupt(std::current_exception())) throw;
    return forms_by_rule(q);
  }
  return read_forms(stack);
}

// The memory format that plain ops read from the strides.
at::MemoryFormat format_of(const TensorForm& form) {
  if (form.dim() == 4 && c10::is_channels_last_strides_2d(form.sizes, form.strides))
    return at::MemoryFormat::ChannelsLast;
  if (form.dim() == 5 && c10::is_channels_last_strides_3d(form.sizes, form.strides))
    return at::MemoryFormat::ChannelsLast3d;
  return at::MemoryFormat::Contiguous;
}

}  // namespace

std::optional<Forms> forms_of_results(const FormQuestion& q) {
  if (!q.rule) return forms_by_op(q);
  auto& told = q.rule->form;
  Forms none;
  auto whole = told.whole ? told.whole({q.functional.schema(), q.args, q.inputs, none}) : none;
  auto forms = whole.empty() ? forms_by_op(q) : std::optional(std::move(whole));
  if (!forms) return forms;
  if (told.check) told.check({q.functional.schema(), q.args, q.inputs, *forms});
  for (auto& form : *forms) {
    if (told.keeps_format && form.defined) form = dense_form(form.sizes, form.dtype, format_of(q.inputs[0]));
  }
  return forms;
}

TensorForm dense_form(at::IntArrayRef shape, at::ScalarType dtype, at::MemoryFormat format) {
  return form_of(at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype).memory_format(format)));
}

at::Tensor meta_tensor(const TensorForm& form) {
  return at::empty_strided(form.sizes, form.strides, at::dtype(form.dtype).device(at::kMeta));
}

void check_expands(const TensorForm& form, at::IntArrayRef shape) {
  at::inferExpandGeometry_dimvector(form.sizes, form.strides, shape);
}

void ask_plain(const OpCall& call) {
  auto stack = stand_ins(call.args, StandIn::zeros);
  auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(call.schema.name().c_str(), call.schema.overload_name().c_str());
  op.callBoxed(stack);
}

void refuse_as_plain(const OpCall& call) {
  ask_plain(call);
  TORCH_CHECK(false, "[", call.schema.name(), "] these sizes do not fit: ", at::IntArrayRef(call.inputs[0].sizes));
}

}  // namespace intarsia
