#include "intarsia/tensor/per_rank.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "intarsia/tensor/interpose.h"
#include "intarsia/tensor/op_watch.h"
#include "intarsia/tensor/without_data.h"

namespace intarsia {
namespace {

struct PerRankMeta final : c10::BackendMeta {
  explicit PerRankMeta(Shards values) : values(std::move(values)) {}
  Shards values;
};

// Beside tensors without data, one that has data counts by its form alone.
at::Tensor tensor_at(const at::Tensor& tensor, size_t slot, bool without_data) {
  auto value = value_at(tensor, slot);
  return without_data && value.defined() && value.dim() > 0 && !value.is_meta() ? value.to(at::kMeta) : value;
}

c10::IValue argument_at(const c10::IValue& value, size_t slot, bool without_data) {
  if (value.isTensor()) return tensor_at(value.toTensor(), slot, without_data);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(tensor_at(tensor, slot, without_data));
    return list;
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, argument_at(list.get(i), slot, without_data));
    return list;
  }
  return value;
}

// The first tensor that stands for one per rank; undefined if there is none.
at::Tensor example_in(const c10::IValue& value) {
  if (value.isTensor()) return is_per_rank(value.toTensor()) ? value.toTensor() : at::Tensor();
  if (!value.isList()) return {};
  for (const c10::IValue& item : value.toListRef()) {
    if (auto found = example_in(item); found.defined()) return found;
  }
  return {};
}

// The results of all ranks as one: tensors stand for all of them, other values must agree.
c10::IValue join(const std::vector<c10::IValue>& values, const c10::OperatorHandle& op) {
  auto& first = values[0];
  if (first.isTensor()) {
    if (!first.toTensor().defined()) return first;
    Shards tensors;
    for (auto& value : values) tensors.push_back(value.toTensor());
    return per_rank(std::move(tensors));
  }
  if (first.isTensorList()) {
    c10::List<at::Tensor> list;
    for (size_t i = 0; i < first.toTensorList().size(); ++i) {
      Shards tensors;
      for (auto& value : values) tensors.push_back(value.toTensorList().get(i));
      list.push_back(per_rank(std::move(tensors)));
    }
    return list;
  }
  for (auto& value : values) {
    TORCH_CHECK_VALUE(value == first, "[", op.operator_name(), "] the simulated ranks give different values, ", first,
                      " and ", value, ", where one is asked for. Take the values apart with shards_of or values_of.");
  }
  return first;
}

void run_on_all(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto& schema = op.schema();
  std::vector<c10::IValue> args(stack->end() - schema.arguments().size(), stack->end());
  stack->erase(stack->end() - schema.arguments().size(), stack->end());
  at::Tensor example;
  for (size_t i = 0; i < args.size() && !example.defined(); ++i) example = example_in(args[i]);
  size_t slots = values_of(example).size();
  bool without_data = values_of(example)[0].is_meta();
  std::vector<std::vector<c10::IValue>> results;
  for (size_t slot = 0; slot < slots; ++slot) {
    auto& local = results.emplace_back();
    for (auto& arg : args) local.push_back(argument_at(arg, slot, without_data));
    without_data ? call_without_data(op, local) : op.callBoxed(local);
  }
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    auto* alias = schema.returns()[r].alias_info();
    c10::IValue result;
    for (size_t i = 0; alias && alias->isWrite() && i < args.size(); ++i) {
      auto* own = schema.arguments()[i].alias_info();
      if (own && own->beforeSets() == alias->beforeSets()) result = args[i];  // in-place and out= return what they were given
    }
    if (result.isNone()) {
      std::vector<c10::IValue> values;
      for (auto& local : results) values.push_back(local[r]);
      result = join(values, op);
    }
    stack->push_back(std::move(result));
  }
}

void fan_out(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (C10_LIKELY(!OpWatch::open())) return run_on_all(op, stack);
  OpWatch::run(op.schema(), *stack, [&] { run_on_all(op, stack); });
}

bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

void register_all() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kPerRankKey, __FILE__, __LINE__);
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    aten->impl(c10::toString(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&fan_out>());
  }
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kPerRankKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&fan_out>());
  static auto* others_autograd =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  others_autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  static auto* autograd =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  autograd->impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace

at::Tensor per_rank(Shards values) {
  register_per_rank();
  auto& first = values[0];
  auto device = first.is_meta() ? c10::Device(at::kCPU) : first.device();  // see Note [Tensors without data]
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(kPerRankKey), first.dtype(), device);
  impl->set_sizes_and_strides(first.sizes(), first.strides());
  impl->set_storage_access_should_throw();
  explain_missing_memory(*impl);
  impl->set_backend_meta(c10::make_intrusive<PerRankMeta>(std::move(values)));
  return at::Tensor(std::move(impl));
}

bool is_per_rank(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kPerRankKey); }

const Shards& values_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_per_rank(tensor), "[values_of] the tensor is not one per rank. Only to_local in a simulation makes such.");
  return static_cast<PerRankMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta())->values;
}

at::Tensor value_at(const at::Tensor& tensor, size_t slot) {
  return is_per_rank(tensor) ? values_of(tensor)[slot] : tensor;
}

void register_per_rank() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace intarsia
