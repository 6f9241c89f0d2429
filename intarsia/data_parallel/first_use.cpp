#include "intarsia/data_parallel/first_use.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "intarsia/core/interposed.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/set_data.h"
#include "intarsia/dispatch/fan_out.h"
#include "intarsia/per_rank/per_rank.h"
#include "intarsia/start.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

using Owner = std::shared_ptr<TwoValued>;

struct Owners {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<TwoValued>> by_storage;
};
Owners& owners() {
  static auto* all = new Owners;
  return *all;
}

Owner owner_by_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  std::lock_guard lock(owners().mutex);
  auto found = owners().by_storage.find(tensor.storage().unsafeGetStorageImpl());
  return found == owners().by_storage.end() ? nullptr : found->second.lock();
}

Owner owner_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kFirstUseKey)) return nullptr;
  if (auto owner = std::dynamic_pointer_cast<TwoValued>(watcher_of(tensor))) return owner;
  if (!is_dtensor(tensor)) return owner_by_storage(tensor);
  auto& shards = body_of(tensor).last_known_shards();
  return shards.empty() ? nullptr : owner_by_storage(shards[0]);
}

// These are about the handle and its history, not about values.
bool is_about_the_handle(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::detach", "aten::detach_", "aten::alias", "aten::requires_grad_", "aten::set_data", "aten::data", "aten::is_leaf",
      "aten::output_nr", "aten::_version", "aten::retain_grad", "aten::retains_grad", "aten::_has_compatible_shallow_copy_type",
      "aten::is_same_size", "aten::size", "aten::stride", "aten::sym_size", "aten::sym_stride", "aten::sym_numel"};
  return names.count(name) > 0;
}

// What the kernel asks of an op, found once per op.
struct OpTraits {
  bool about_the_handle, is_view;
};

bool returns_a_view(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) {
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpTraits> known;
  auto& schema = op.schema();  // lives as long as the op
  auto found = known.find(&schema);
  if (found != known.end()) return found->second;
  OpTraits traits{is_about_the_handle(schema.name()), returns_a_view(schema)};
  return known.emplace(&schema, traits).first->second;
}

// What a call needs of the leaves with two values among its arguments.
struct UsingCall {
  std::vector<Owner> owners;        // each once
  std::vector<const DeviceMesh*> meshes;  // of other distributed tensors
  bool meets_plain = false;         // other tensors that are not distributed
  bool writes = false;              // to a leaf
};

void look_at(UsingCall& call, const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) return;
  if (auto owner = owner_of(tensor)) {
    if (std::find(call.owners.begin(), call.owners.end(), owner) == call.owners.end()) call.owners.push_back(owner);
    call.writes = call.writes || written;
  } else if (is_dtensor(tensor)) {
    call.meshes.push_back(&mesh_of(tensor));
  } else {
    call.meets_plain = call.meets_plain || tensor.dim() > 0;
  }
}

UsingCall look_at_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  UsingCall call;
  auto& arguments = op.schema().arguments();
  auto first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto* alias = arguments[i].alias_info();
    for (auto& tensor : tensors_in(stack[first + i])) look_at(call, tensor, alias && alias->isWrite());
  }
  return call;
}

bool needs_whole(const OpTraits& op, const UsingCall& call, const TwoValued& owner) {
  if (call.writes) return false;
  if (call.meets_plain || owner.is_pinned() || at::GradMode::is_enabled()) return true;
  if (torch::autograd::get_current_graph_task_id() >= 0 && !is_in_hook_of_program()) return true;  // a formula of backward
  for (auto* mesh : call.meshes) {
    if (!owner.lies_on(*mesh)) return true;
  }
  return call.meshes.empty() && op.is_view;
}

// Has the owners gather before the node runs.
class GatherFirst final : public torch::autograd::FunctionPreHook {
 public:
  explicit GatherFirst(std::vector<std::weak_ptr<TwoValued>> owners) : owners_(std::move(owners)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    for (auto& owner : owners_) {
      if (auto alive = owner.lock()) alive->need_whole();
    }
    return grads;
  }

 private:
  std::vector<std::weak_ptr<TwoValued>> owners_;
};

void hook_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, const std::vector<Owner>& owners) {
  std::set<torch::autograd::Node*> nodes;
  auto count = op.schema().returns().size();
  for (auto i = stack.size() - count; i < stack.size(); ++i) {
    for (auto& tensor : tensors_in(stack[i])) {
      if (!tensor.defined() || !tensor.grad_fn()) continue;
      // A view of a distributed whole shares its memory, so what reads the view needs the whole, too.
      bool shares = is_dtensor(tensor) && traits_of(op).is_view && owner_by_storage(body_of(tensor).last_known_shards()[0]);
      if (shares) tensor.unsafeGetTensorImpl()->shallow_copy_from(with_first_use_key(tensor).getIntrusivePtr());
      auto node = tensor.grad_fn();
      if (!nodes.insert(node.get()).second) continue;
      node->add_pre_hook(std::make_unique<GatherFirst>(std::vector<std::weak_ptr<TwoValued>>(owners.begin(), owners.end())));
    }
  }
}

// p.data() of a whole is a plain tensor with a handle of its own. An op that needs shards gets those of the leaf.
at::Tensor shards_of_alias(const at::Tensor& tensor) {
  bool alias = tensor.defined() && tensor.key_set().has(kFirstUseKey) && !is_dtensor(tensor);
  auto owner = alias ? owner_of(tensor) : nullptr;
  return owner ? owner->shards_for(tensor) : tensor;
}

void replace_aliases(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  for (auto i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    stack[i] = argument_at(stack[i], 0, shards_of_alias);
  }
}

// Where an op uses the leaves of several owners, the gathering of one must not free another.
class HoldScope {
 public:
  ~HoldScope() {
    for (auto& owner : held_) owner->hold(false);
  }
  void hold(const std::vector<Owner>& owners) {
    if (owners.size() < 2) return;
    for (auto& owner : owners) owner->hold(true), held_.push_back(owner);
  }

 private:
  std::vector<Owner> held_;
};

void on_use(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  std::vector<Owner> whole;
  HoldScope held;
  std::optional<PlainTensorScope> plain;
  auto& traits = traits_of(op);
  if (!traits.about_the_handle) {
    c10::impl::ExcludeDispatchKeyGuard ours(kFromNothingKeys);  // what is made here is plain
    auto call = look_at_call(op, *stack);
    for (auto& owner : call.owners) {
      needs_whole(traits, call, *owner) ? whole.push_back(owner) : owner->need_shards();
    }
    held.hold(whole);
    for (auto& owner : whole) owner->need_whole();
    if (whole.size() < call.owners.size()) replace_aliases(op, *stack);
    if (call.writes && call.meets_plain) plain.emplace(PlainTensors::replicate);  // p.copy_(whole): each rank takes its part
  }
  {
    c10::impl::ExcludeDispatchKeyGuard guard(kFirstUseKey);
    op.callBoxed(stack);
  }
  if (!whole.empty() && at::GradMode::is_enabled()) hook_results(op, *stack, whole);
}

void register_first_use() {
  start();
  watch_set_data();
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* all = new torch::Library(torch::Library::IMPL, "_", kFirstUseKey, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFromBoxedFunction<&on_use>());
  });
}

}  // namespace

// In a rehearsal activations are one per rank, and so is what meets them: see Note [Tensors without data].
static at::Tensor per_rank_with_key(const at::Tensor& value) {
  auto one = per_rank({value});
  auto* given = one.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(given->key_set().add(kFirstUseKey), one.dtype(), one.device());
  impl->set_sizes_and_strides(value.sizes(), value.strides());
  impl->set_storage_access_should_throw();
  impl->set_backend_meta(given->get_backend_meta_intrusive_ptr());
  return at::Tensor(std::move(impl));
}

at::Tensor make_whole(at::Storage storage, at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype) {
  register_first_use();
  bool has_data = storage.device_type() != c10::DeviceType::Meta;
  auto keys = c10::DispatchKeySet({has_data ? c10::DispatchKey::CPU : c10::DispatchKey::Meta, kFirstUseKey});
  if (!has_data && is_rehearsing()) keys = keys.remove(kFirstUseKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, dtype);
  impl->set_sizes_and_strides(sizes, strides);
  at::Tensor whole(std::move(impl));
  return keys.has(kFirstUseKey) ? whole : per_rank_with_key(whole);
}

at::Tensor with_first_use_key(const at::Tensor& dtensor) {
  register_first_use();
  auto keys = dtensor.unsafeGetTensorImpl()->key_set().add(kFirstUseKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, dtensor.dtype(), dtensor.device());
  impl->set_sizes_and_strides(dtensor.sizes(), dtensor.strides());
  impl->set_storage_access_should_throw();
  explain_missing_memory(*impl);
  impl->set_backend_meta(shared_body_of(dtensor));
  return at::Tensor(std::move(impl));
}

void own_storage(const at::Storage& storage, std::weak_ptr<TwoValued> owner) {
  std::lock_guard lock(owners().mutex);
  owners().by_storage[storage.unsafeGetStorageImpl()] = std::move(owner);
}

void disown_storage(const at::Storage& storage) {
  std::lock_guard lock(owners().mutex);
  owners().by_storage.erase(storage.unsafeGetStorageImpl());
}

}  // namespace intarsia
