#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include "intarsia/data_parallel/fully_shard/param_call.h"
#include "intarsia/data_parallel/fully_shard/param_op_traits.h"
#include "intarsia/data_parallel/fully_shard/undecided.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/data_parallel/set_data.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/libtorch/interposition.h"
#include "intarsia/simulation/fan_out/fan_out.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/start.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

using Owner = std::shared_ptr<ParamOwner>;
using Stack = torch::jit::Stack;

// --- what the op gets

using Change = std::function<at::Tensor(const at::Tensor&)>;

void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(change(tensor));
    value = list;
  } else if (!tensors_in(value).empty()) {  // of which some may be missing
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list.get(i).isTensor()) list.set(i, change(list.get(i).toTensor()));
    }
    value = list;
  }
}

// The last `count` entries: the arguments of a call, or its results.
void change_last(Stack& stack, size_t count, const Change& change) {
  for (auto i = stack.size() - count; i < stack.size(); ++i) change_tensors(stack[i], change);
}

// The parameters of a call that needs the whole of some owners. The tensors that replace them live as long as this
// object.
class Gathered {
 public:
  ~Gathered() {
    for (auto& owner : held_) owner->hold(false);
  }
  // Where an op uses the leaves of several owners, the gathering of one must not free another.
  void gather(const std::vector<Owner>& owners) {
    owners_ = owners;
    for (auto& owner : owners_) {
      if (owners_.size() > 1) owner->hold(true), held_.push_back(owner);
    }
    for (auto& owner : owners_) owner->need_whole();
  }
  bool has(const Owner& owner) const { return std::find(owners_.begin(), owners_.end(), owner) != owners_.end(); }

  at::Tensor in_place_of(const at::Tensor& tensor) {
    auto handle = handle_of(tensor);
    if (!handle.owner || !has(handle.owner)) return tensor;
    if (handle.kind == HandleKind::shards) {
      stand_ins_.emplace_back(handle.owner->stand_in(handle.index, false).tensor, tensor);
      return stand_ins_.back().first;
    }
    bool of_leaf = handle.kind == HandleKind::leaf || (tensor.requires_grad() && tensor.is_leaf());
    if (!of_leaf) return tensor;
    auto made = handle.owner->stand_in(handle.index, true);
    if (made.accumulator) accumulators_.push_back(made.accumulator);
    if (handle.kind == HandleKind::whole) return tensor;
    stand_ins_.emplace_back(made.tensor, tensor);
    return made.tensor;
  }

  // An op that returns what it was given, such as contiguous, returns the leaf.
  at::Tensor handle_for(const at::Tensor& result) const {
    for (auto& [stand_in, handle] : stand_ins_) {
      if (result.is_same(stand_in) && result.scalar_type() == handle.scalar_type()) return handle;
    }
    return result;
  }

 private:
  std::vector<Owner> owners_, held_;
  std::vector<NodePtr> accumulators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;  // and the leaf or handle
};

// Before shards are used: handles of the whole become handles of the shards, and views of it values, since its memory
// may go.
void leave_whole(const ParamCall& call, const c10::OperatorHandle& op, Stack& stack, const Gathered& gathered) {
  bool is_shown = std::any_of(call.owners.begin(), call.owners.end(), [](auto& owner) { return owner->is_shown(); });
  if (!call.has_whole && !is_shown) return;
  std::vector<bool> written;
  for (auto& argument : op.schema().arguments()) {
    written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  }
  for (size_t i = 0, first = stack.size() - written.size(); i < written.size(); ++i) {
    change_tensors(stack[first + i], [&](const at::Tensor& tensor) {
      auto handle = handle_of(tensor);
      bool is_shown_leaf = handle.kind == HandleKind::leaf && handle.owner->is_shown() && !written[i];
      if (is_shown_leaf && !gathered.has(handle.owner)) return handle.owner->shards_of_leaf(handle.index);
      if (handle.kind != HandleKind::whole || gathered.has(handle.owner)) return tensor;
      if (handle.owner->is_handle_of_whole(handle.index, tensor)) return handle.owner->shards_of_leaf(handle.index);
      TORCH_CHECK(!written[i], "[fully_shard] a part of \"", handle.owner->name_of(handle.index), "\", of shape ",
                  tensor.sizes(),
                  ", is written together with distributed tensors, or ranks' own values, or in another ",
                  "dtype than that of the shards. Write to the parameter itself.");
      handle.owner->need_whole();
      return tensor.detach().clone();
    });
  }
}

at::Tensor marked_as_computed(const at::Tensor& value) {
  bool is_plain = value.defined() && !is_dtensor(value) && !is_per_rank(value) && value.is_cpu() &&
                  value.has_storage() && value.layout() == c10::kStrided && value.dim() > 0 && !value.requires_grad();
  if (!is_plain || value.key_set().has(kFirstUseKey)) return value;
  auto keys = value.key_set().add(kFirstUseKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(value.storage()), keys, value.dtype());
  impl->set_storage_offset(value.storage_offset());
  impl->set_sizes_and_strides(value.sizes(), value.strides());
  return at::Tensor(std::move(impl));
}

// See Note [Undecided tensors].
void decide(const ParamCall& call, const c10::OperatorHandle& op, Stack& stack) {
  if (!call.others.empty()) std::for_each(call.undecided.begin(), call.undecided.end(), decide_for_shards);
  if (!call.undecided_whole || call.undecided.empty()) return;
  auto& arguments = op.schema().arguments();
  for (size_t i = 0, first = stack.size() - arguments.size(); i < arguments.size(); ++i) {
    bool written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    change_tensors(stack[first + i], [&](const at::Tensor& tensor) {
      if (handle_of(tensor).kind != HandleKind::undecided) return tensor;
      auto whole = decide_for_whole(tensor, written);
      if (written && !call.meets_plain) adopt(tensor, marked_as_computed(whole));
      return whole;
    });
  }
}

// What was computed from parameters becomes distributed like the tensor that is written into it.
void distribute_computed(const ParamCall& call, const c10::OperatorHandle& op, Stack& stack) {
  change_last(stack, op.schema().arguments().size(), [&](const at::Tensor& tensor) {
    if (handle_of(tensor).kind != HandleKind::computed) return tensor;
    auto has_its_shape = [&](auto& other) { return other.sizes() == tensor.sizes(); };
    auto like = std::find_if(call.others.begin(), call.others.end(), has_its_shape);
    auto& mesh = mesh_of(like == call.others.end() ? call.others[0] : *like);
    bool fits = like != call.others.end() && !layout_of(*like).has_partial();
    auto placements = fits ? placements_of(*like) : Placements(mesh.ndim(), Replicate());
    auto made = distribute_tensor(tensor.detach(), mesh, placements, std::nullopt);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(made.getIntrusivePtr());
    return tensor;
  });
}

// --- results

// Has the owners gather before the node runs.
class GatherFirst final : public torch::autograd::FunctionPreHook {
 public:
  explicit GatherFirst(std::vector<std::weak_ptr<ParamOwner>> owners) : owners_(std::move(owners)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    for (auto& owner : owners_) {
      if (auto alive = owner.lock()) alive->need_whole();
    }
    return grads;
  }

 private:
  std::vector<std::weak_ptr<ParamOwner>> owners_;
};

// A view of a distributed whole shares its memory, so what reads the view needs the whole as well.
void mark_view(const at::Tensor& view) {
  auto marked = with_first_use_key(view);
  if (handle_of(marked).kind != HandleKind::whole) return;
  view.unsafeGetTensorImpl()->shallow_copy_from(marked.getIntrusivePtr());
}

// Autograd passes the key on to another handle; without autograd, in inference mode, this makes a new one.
at::Tensor still_marked(const at::Tensor& handle) {
  bool is_unmarked = is_dtensor(handle) && !handle.key_set().has(kFirstUseKey);
  return is_unmarked ? with_first_use_key(handle) : handle;
}

at::Tensor marked_as_undecided(const at::Tensor& result) {
  bool is_new = is_dtensor(result) && !result.key_set().has(kFirstUseKey) && !result.requires_grad();
  return is_new ? with_first_use_key(result) : result;
}

void hook_results(const c10::OperatorHandle& op, Stack& stack, const std::vector<Owner>& owners) {
  std::set<torch::autograd::Node*> nodes;
  auto count = op.schema().returns().size();
  for (auto i = stack.size() - count; i < stack.size(); ++i) {
    for (auto& tensor : tensors_in(stack[i])) {
      if (!tensor.defined() || !tensor.grad_fn()) continue;
      if (is_dtensor(tensor) && param_traits_of(op).is_view) mark_view(tensor);
      auto node = tensor.grad_fn();
      if (!nodes.insert(node.get()).second) continue;
      node->add_pre_hook(
          std::make_unique<GatherFirst>(std::vector<std::weak_ptr<ParamOwner>>(owners.begin(), owners.end())));
    }
  }
}

// Whether the results are values of parameters alone, which an optimizer may go on with.
bool computes(const ParamOpTraits& op, const ParamCall& call) {
  if (op.writes || call.meets_plain || !call.others.empty() || is_in_backward()) return false;
  if (call.has_leaf && at::GradMode::is_enabled()) return false;
  if (std::any_of(call.whole.begin(), call.whole.end(), [](auto& owner) { return owner->is_shown(); })) return false;
  bool all_whole = !call.uses_shards() && !call.keeps_undecided() && call.owners.size() + call.undecided.size() > 0;
  return call.has_computed || all_whole;
}

// Whether the results are shards that nobody has a use for yet.
bool makes_undecided(const ParamOpTraits& op, const ParamCall& call) {
  return !op.writes && !call.meets_plain && call.others.empty() && (call.uses_shards() || call.keeps_undecided());
}

// Brings the parameters of a call into the form that it needs. The scope, if one is opened, is for the call.
void prepare(const c10::OperatorHandle& op, Stack& stack, const ParamCall& call, Gathered& gathered,
             std::optional<PlainTensorScope>& plain) {
  c10::impl::ExcludeDispatchKeyGuard ours(kFactoryKeys);  // what is made here is plain
  gathered.gather(call.whole);
  if (call.uses_shards()) leave_whole(call, op, stack, gathered);
  for (auto& [handle, is_part] : call.written) {
    if (call.writes_shards()) handle.owner->free_whole();
  }
  if (!call.whole.empty()) {
    change_last(stack, op.schema().arguments().size(), [&](auto& tensor) { return gathered.in_place_of(tensor); });
  }
  decide(call, op, stack);
  if (call.writes_computed && !call.meets_plain && !call.others.empty()) distribute_computed(call, op, stack);
  bool values_of_all =  // p.copy_(whole): each rank takes its part
      call.writes_shards() && (call.meets_plain || call.has_whole);
  bool has_shards = call.uses_shards() || call.keeps_undecided() || !call.others.empty();
  bool beside_shards = call.has_computed && !call.meets_plain && has_shards;
  if (values_of_all || beside_shards) plain.emplace(PlainTensors::replicate);
}

void finish(const c10::OperatorHandle& op, Stack& stack, const ParamCall& call, const Gathered& gathered) {
  for (auto& [handle, is_part] : call.written) {
    if (call.writes_whole) handle.owner->whole_was_written(handle.index);
    // An optimizer writes to one parameter after the other: the next op that needs the whole gathers it.
    if (call.writes_shards() && call.others.empty()) handle.owner->show_again();
  }
  auto& traits = param_traits_of(op);
  auto results = op.schema().returns().size();
  if (!call.whole.empty() && at::GradMode::is_enabled()) hook_results(op, stack, call.whole);
  if (!call.whole.empty()) change_last(stack, results, [&](auto& tensor) { return gathered.handle_for(tensor); });
  if (computes(traits, call)) change_last(stack, results, marked_as_computed);
  if (makes_undecided(traits, call)) change_last(stack, results, marked_as_undecided);
}

void on_use(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Gathered gathered;
  ParamCall call;
  std::optional<PlainTensorScope> plain;
  bool about_the_handle = param_traits_of(op).about_the_handle;
  if (!about_the_handle) {
    call = read_param_call(op, *stack);
    prepare(op, *stack, call, gathered, plain);
  }
  {
    // In inference mode another handle has no version counter, which LibTorch's kernel for views would set.
    c10::DispatchKeySet done(kFirstUseKey);
    if (about_the_handle && c10::InferenceMode::is_enabled()) done = done.add(c10::DispatchKey::ADInplaceOrView);
    c10::impl::ExcludeDispatchKeyGuard guard(done);
    op.callBoxed(stack);
  }
  if (about_the_handle) return change_last(*stack, op.schema().returns().size(), still_marked);
  finish(op, *stack, call, gathered);
}

void register_first_use() {
  start();
  watch_set_data();
  set_at_rest(shards_at_rest());
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* all = new torch::Library(torch::Library::IMPL, "_", kFirstUseKey, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFromBoxedFunction<&on_use>());
  });
}

}  // namespace

// In a rehearsal activations are per-rank, and so are tensors that meet them: see Note [Tensors without data].
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

static at::Tensor with_keys(const at::Tensor& dtensor, c10::DispatchKeySet keys) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, dtensor.dtype(), dtensor.device());
  impl->set_sizes_and_strides(dtensor.sizes(), dtensor.strides());
  impl->set_storage_access_should_throw();
  explain_missing_memory(*impl);
  impl->set_backend_meta(shared_body_of(dtensor));
  return at::Tensor(std::move(impl));
}

at::Tensor with_first_use_key(const at::Tensor& dtensor) {
  register_first_use();
  return with_keys(dtensor, dtensor.key_set().add(kFirstUseKey));
}
at::Tensor without_first_use_key(const at::Tensor& dtensor) {
  return with_keys(dtensor, dtensor.key_set().remove(kFirstUseKey));
}

}  // namespace intarsia
