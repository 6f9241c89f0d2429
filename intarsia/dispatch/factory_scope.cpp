#include "intarsia/dispatch/factory_scope.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "intarsia/dispatch/generator.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

thread_local const Layout* model_ = nullptr;
thread_local const FactoryLayout* place_ = nullptr;  // the innermost scope has one of the two

void set_keys(c10::DispatchKeySet included, c10::DispatchKeySet excluded) {
  c10::impl::PODLocalDispatchKeySet keys;
  keys.set_included(included);
  keys.set_excluded(excluded);
  c10::impl::_force_tls_local_dispatch_key_set(keys);
}

void enter(bool beside_plain) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  auto included = (keys.included_ - kFactoryKeys).add(beside_plain ? kBesidePlainKey : kFactoryKey);
  set_keys(included, keys.excluded_ - kFactoryKeys);
}

bool is_tensor(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return is_tensor(optional->getElementType());
  if (auto list = type->cast<c10::ListType>()) return is_tensor(list->getElementType());
  return type->kind() == c10::TypeKind::TensorType;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](auto& a) { return is_tensor(a.type()); });
}

void see_all(GivenTensors& given, const c10::IValue& arg) {
  if (arg.isTensor()) return given.see(arg.toTensor());
  if (arg.isTensorList()) {
    for (const at::Tensor& tensor : arg.toTensorList()) given.see(tensor);
  } else if (arg.isList() && is_tensor(arg.type()->cast<c10::ListType>()->getElementType())) {
    for (const c10::IValue& item : arg.toListRef()) {
      if (item.isTensor()) given.see(item.toTensor());
    }
  }
}

GivenTensors given_to(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  GivenTensors given;
  for (auto arg = stack.end() - static_cast<int64_t>(op.schema().arguments().size()); arg != stack.end(); ++arg) {
    see_all(given, *arg);
  }
  return given;
}

void composite(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_composite(op, stack);
}

bool makes_a_tensor(const c10::OperatorHandle& op) {
  auto& schema = op.schema();
  return !takes_tensors(schema) && schema.returns().size() == 1 && is_tensor(schema.returns()[0].type()) &&
         schema.argumentIndexWithName("device");
}

void make_replicated(const c10::OperatorHandle& op, torch::jit::Stack* stack, const DeviceMesh& mesh) {
  auto count = op.schema().arguments().size();
  std::optional<AgreedDraw> agreed;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    c10::ArrayRef<c10::IValue> args(stack->data() + stack->size() - count, count);
    agreed.emplace(c10::toString(op.operator_name()), mesh, args);
  }
  op.callBoxed(*stack);
  auto made = stack->back().toTensor();
  bool fits = made.layout() == at::kStrided && made.device().type() == mesh.device_type() && !is_dtensor(made);
  if (!fits || rule_table().traits_of(op.operator_name()).makes_plain) return;
  at::AutoDispatchBelowADInplaceOrView below;
  Shards shards;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) shards.push_back(slot ? twin_of(made) : made);
  stack->back() = wrap(std::move(shards), Layout::replicated(mesh), made.sizes(), made.strides(), made.dtype());
}

// Python's torch.tensor creates an empty tensor and writes the given values into its memory. It disables all modes
// meanwhile, and nothing else does so.
bool takes_memory() {
  constexpr c10::DispatchKeySet modes({c10::DispatchKey::Fake, c10::DispatchKey::DeferredInit});
  return c10::impl::tls_local_dispatch_key_set().excluded_.has_all(modes);
}

void make(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (takes_memory()) {
    c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
    op.callBoxed(*stack);
  } else {
    c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
    bool made = place_ && make_in_parts(op, *stack, *place_);
    if (!made) make_replicated(op, stack, place_ ? place_->mesh : model_->mesh());
  }
  enter(true);  // for the rest of the scope: the function creates tensors, and may create plain ones as well
}

// Ops on plain tensors alone run outside the scope.
void beside_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kBesidePlainKey);
  auto given = given_to(op, *stack);
  if (given.model || !given.plain) return op.redispatchBoxed(below, stack);
  c10::impl::ExcludeDispatchKeyGuard guard(kFactoryKeys);
  op.redispatchBoxed(below, stack);
}

// Views and conversions create nothing. Ops that pass their arguments on are left alone: every training step calls
// them, and a boxed call costs up to a microsecond if there are lists of numbers.
bool may_make_tensors(const c10::OperatorHandle& op) {
  auto& schema = op.schema();
  auto& returns = schema.returns();
  auto& traits = rule_table().traits_of(op.operator_name());
  if (!takes_tensors(schema) || traits.about_the_handle || traits.hands_on) return false;
  return std::any_of(returns.begin(), returns.end(), [](auto& result) {
    return is_tensor(result.type()) && (!result.alias_info() || result.alias_info()->isWrite());
  });
}

}  // namespace

FactoryScope::FactoryScope(const GivenTensors& given) : FactoryScope() {
  if (!given.model) return;
  if (!given.lists) policy_.emplace(PlainTensors::replicate);
  model_ = given.model;
  place_ = nullptr;
  enter(given.plain);
}

FactoryScope::FactoryScope(const FactoryLayout& place) : FactoryScope() {
  place_ = &place;
  enter(true);
}

FactoryScope::FactoryScope() : outer_(model_), outer_place_(place_), keys_(c10::impl::tls_local_dispatch_key_set()) {}

FactoryScope::~FactoryScope() {
  model_ = outer_;
  place_ = outer_place_;
  auto now = c10::impl::tls_local_dispatch_key_set();
  auto back = [](c10::DispatchKeySet now, c10::DispatchKeySet before) {
    return (now - kFactoryKeys) | (before & kFactoryKeys);
  };
  set_keys(back(now.included_, keys_.included_), back(now.excluded_, keys_.excluded_));
}

void GivenTensors::see(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  // A parameter that is gathered at its first use will be plain by then.
  if (!is_dtensor(tensor) || tensor.key_set().has(kFirstUseKey)) {
    plain = true;
    lists = lists || is_per_rank(tensor) || tensor.numel() != 1;
  } else if (!leads_) {
    leads_ = tensor.numel() != 1;
    if (leads_ || !model) model = &layout_of(tensor);
  }
}

void run_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto given = given_to(op, *stack);
  FactoryScope scope(given);
  op.redispatchBoxed(kComposite, stack);
}

void register_composites(torch::Library& aten, torch::Library& autograd, bool (*is_free)(const c10::OperatorHandle&)) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = name.name.rfind("aten::", 0) == 0 ? dispatcher.findSchema(name) : std::nullopt;
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || !is_free(*op)) continue;
    if (!may_make_tensors(*op)) continue;
    auto overload = c10::toString(name).substr(6);
    for (auto* library : {&aten, &autograd}) {
      library->impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&composite>());
    }
  }
}

void register_factories() {
  static auto* quiet = new torch::Library(torch::Library::IMPL, "_", kFactoryKey, __FILE__, __LINE__);
  quiet->fallback(torch::CppFunction::makeFallthrough());
  static auto* watchful = new torch::Library(torch::Library::IMPL, "_", kBesidePlainKey, __FILE__, __LINE__);
  watchful->fallback(torch::CppFunction::makeFromBoxedFunction<&beside_plain>());
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kFactoryKey, __FILE__, __LINE__);
  static auto* aten_too = new torch::Library(torch::Library::IMPL, "aten", kBesidePlainKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = name.name.rfind("aten::", 0) == 0 ? dispatcher.findSchema(name) : std::nullopt;
    if (!op || !makes_a_tensor(*op)) continue;
    for (auto* library : {aten, aten_too}) {
      library->impl(c10::toString(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&make>());
    }
  }
}

}  // namespace intarsia
