#include "intarsia/dispatch/register.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "intarsia/dispatch/factory_scope.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/interpose.h"

namespace intarsia {
namespace {

class OpKernel final : public c10::OperatorKernel {
 public:
  explicit OpKernel(const c10::OperatorHandle& handle) : op_(std::make_unique<Op>(handle)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(op_->keeps_note)) return run_keeping_note(*stack);
    run_op(*op_, *stack);
  }

 private:
  // See Note [Tensors with a note].
  void run_keeping_note(torch::jit::Stack& stack) {
    auto& self = stack[stack.size() - op_->kinds.size()].toTensor();
    auto note = is_dtensor(self) ? body_of(self).note : NotePtr();
    run_op(*op_, stack);
    if (note) attach_note(stack.back().toTensor(), std::move(note));
  }

  std::unique_ptr<Op> op_;
};

void decompose(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(kComposite, stack);
}

// Ops of other libraries have no kernel of their own: each is read from its schema when it is first met.
void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack* stack) {
  static auto* mutex = new std::mutex;
  static auto* ops = new std::unordered_map<c10::OperatorName, std::unique_ptr<Op>>;
  Op* op;
  {
    std::lock_guard lock(*mutex);
    auto& entry = (*ops)[handle.operator_name()];
    if (!entry) entry = std::make_unique<Op>(handle);
    op = entry.get();
  }
  run_op(*op, *stack);
}

// A quantized tensor and a distributed one together have a separate key. LibTorch's kernels for it read memory.
void refuse_quantized(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", op.operator_name(), "] a quantized tensor meets a distributed one. ",
                              "Call dequantize on it first.");
}

void register_quantized() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kQuantizedWithDTensorKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = name.getNamespace() == "aten" ? dispatcher.findSchema(name) : std::nullopt;
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) continue;
    library->impl(c10::toString(name).substr(6).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
  }
}

// Composite ops decompose and bring their gradient with them. Those with an autograd formula (silu_backward) are taken
// over if there is a rule, and so are those that stay whole. foreach ops without a pass over the shards (see
// ops/lists/foreach.cpp) decompose into the ops of single tensors.
bool takes_over(const c10::OperatorHandle& handle) {
  auto overload = c10::toString(handle.operator_name());
  auto& table = rule_table();
  if (table.has_kernel(overload) || table.is_composite(overload)) return false;
  if (is_foreach(handle.operator_name())) return table.has_lowering(overload);
  if (table.stays_whole(handle.operator_name())) return true;
  if (!handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return true;
  return handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) && table.find(handle.operator_name());
}

// Whether it is a composite op that decomposes without our help.
bool is_left_alone(const c10::OperatorHandle& handle) {
  auto overload = c10::toString(handle.operator_name());
  return !takes_over(handle) && !rule_table().brings_kernel(overload);
}

torch::CppFunction kernel_for(const c10::OperatorHandle& handle) {
  return torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(std::make_unique<OpKernel>(handle)));
}

}  // namespace

void register_dispatch() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kDTensorKey, __FILE__, __LINE__);
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle || !takes_over(*handle)) continue;
    aten->impl(c10::toString(name).substr(6).c_str(), kernel_for(*handle));
  }
  for (auto& name : dispatcher.getAllOpNames()) {
    auto handle = rule_table().rules().count(c10::toString(name)) ? dispatcher.findSchema(name) : std::nullopt;
    if (handle) register_ruled(*handle);
  }
  static auto* others = new torch::Library(torch::Library::IMPL, "_", kDTensorKey, __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  // Those that have no gradient are treated as on a CPU: backward through them warns.
  static auto* others_autograd = new torch::Library(torch::Library::IMPL, "_", kDTensorAutogradKey, __FILE__, __LINE__);
  others_autograd->fallback(torch::autograd::basicAutogradNotImplementedFallback());
  static auto* notes = new torch::Library(torch::Library::IMPL, "_", kNoteKey, __FILE__, __LINE__);
  notes->fallback(torch::CppFunction::makeFallthrough());
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten", kDTensorAutogradKey, __FILE__, __LINE__);
  rule_table().register_kernels(*aten, *autograd);
  register_composites(*aten, *autograd, is_left_alone);
  register_factories();
  register_quantized();
  take_along_interposed();
}

void register_ruled(const c10::OperatorHandle& handle) {
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>;  // registrations live as long
  auto name = c10::toString(handle.operator_name());
  auto cut = name.find("::");
  if (name.substr(0, cut) == "aten" || handle.hasKernelForDispatchKey(kDTensorKey)) return;
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, cut), kDTensorKey, __FILE__, __LINE__);
  library->impl(name.substr(cut + 2).c_str(), kernel_for(handle));
  libraries->push_back(std::move(library));
  if (!handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  // Its gradient is that of the ops that it is made of. Without autograd, in inference mode, the rule serves.
  auto autograd = std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, cut), kDTensorAutogradKey,
                                                   __FILE__, __LINE__);
  autograd->impl(name.substr(cut + 2).c_str(), torch::CppFunction::makeFromBoxedFunction<&decompose>());
  libraries->push_back(std::move(autograd));
}

}  // namespace intarsia
