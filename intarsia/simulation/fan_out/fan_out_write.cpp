#include "intarsia/simulation/fan_out/fan_out_write.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/rules/table.h"
#include "intarsia/simulation/fan_out/fan_out.h"
#include "intarsia/simulation/per_rank/per_rank.h"

namespace intarsia {
namespace {

using Impl = c10::intrusive_ptr<c10::TensorImpl>;

// Plain leaves with per-rank gradients, by their memory.
class Leaves {
 public:
  void note(const at::Tensor& leaf) {
    std::lock_guard lock(mutex_);
    if (leaves_.size() >= purge_at_) {
      std::erase_if(leaves_, [](auto& entry) { return entry.second.expired(); });
      purge_at_ = 2 * leaves_.size() + 64;
    }
    leaves_.insert_or_assign(leaf.storage().unsafeGetStorageImpl(), Weak(leaf.getIntrusivePtr()));
  }
  // Undefined if there is none.
  at::Tensor find(const c10::Storage& memory) {
    std::lock_guard lock(mutex_);
    auto found = leaves_.find(memory.unsafeGetStorageImpl());
    if (found == leaves_.end()) return {};
    auto impl = found->second.lock();
    bool same = impl && impl->has_storage() && impl->unsafe_storage().unsafeGetStorageImpl() == found->first;
    return same ? at::Tensor(std::move(impl)) : at::Tensor();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;
  std::mutex mutex_;
  std::unordered_map<c10::StorageImpl*, Weak> leaves_;
  size_t purge_at_ = 64;
};

Leaves& leaves() {
  static auto* all = new Leaves;
  return *all;
}

void add_distinct(std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  if (std::none_of(list.begin(), list.end(), [&](auto& known) { return known.is_same(tensor); }))
    list.push_back(tensor);
}

bool is_plain(const at::Tensor& tensor) { return tensor.defined() && !is_per_rank(tensor) && tensor.has_storage(); }

// All tensors that are known to see the memory of a plain tensor, including itself.
std::vector<at::Tensor> seers_of(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> args) {
  std::vector<at::Tensor> seers = {tensor};
  auto& memory = tensor.storage();
  if (auto leaf = leaves().find(memory); leaf.defined()) add_distinct(seers, leaf);
  if (tensor.is_view()) add_distinct(seers, at::Tensor(tensor._base()));
  for (auto& arg : args) {
    for (auto& other : tensors_in(arg)) {
      if (is_plain(other) && other.storage().is_alias_of(memory)) add_distinct(seers, other);
    }
  }
  return seers;
}

at::Tensor bytes_of(const c10::Storage& memory) {
  auto none = at::empty({0}, at::TensorOptions(at::kByte).device(memory.device()));
  return none.set_(memory, 0, {static_cast<int64_t>(memory.nbytes())}, {1});
}

// The same view over other memory of the same kind.
at::Tensor over(const c10::Storage& memory, const at::Tensor& tensor) {
  return at::empty({0}, tensor.options()).set_(memory, tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

Impl copy_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
}

}  // namespace

struct PlainTargets::Target {
  std::vector<at::Tensor> seers;
  std::vector<Impl> plain;           // what each was before
  std::vector<c10::Storage> memory;  // one per rank; the first is that of the plain tensors

  // An op such as resize_ changes the form.
  bool is_as_it_was() const {
    for (size_t i = 0; i < seers.size(); ++i) {
      for (auto& value : values_of(seers[i])) {
        if (value.sizes() != plain[i]->sizes() || value.strides() != plain[i]->strides()) return false;
      }
    }
    return true;
  }
  bool is_equal() const {
    if (memory[0].device().is_meta()) return true;  // there are no data
    auto first = bytes_of(memory[0]);
    return std::all_of(memory.begin() + 1, memory.end(),
                       [&](auto& other) { return at::equal(first, bytes_of(other)); });
  }
  void become_plain() {
    for (size_t i = 0; i < seers.size(); ++i) seers[i].unsafeGetTensorImpl()->shallow_copy_from(plain[i]);
  }
};

using Writers = std::unordered_map<const c10::FunctionSchema*, const UnannouncedWrites*>;

// By schema: every op on per-rank tensors is looked up here.
const Writers& unannounced_writers() {
  static const auto* writers = [] {
    auto* found = new Writers;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (auto& name : dispatcher.getAllOpNames()) {
      auto& writes = rule_table().traits_of(name).writes;
      auto op = writes ? dispatcher.findSchema(name) : std::nullopt;
      if (op) found->emplace(&op->schema(), &*writes);
    }
    return found;
  }();
  return *writers;
}

const UnannouncedWrites* unannounced_writes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  auto found = unannounced_writers().find(&op.schema());
  if (found == unannounced_writers().end()) return nullptr;
  auto flag = op.schema().argumentIndexWithName(found->second->flag);
  return flag && args[*flag].toBool() ? found->second : nullptr;
}

bool writes_unannounced(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  return unannounced_writes(op, args);
}

PlainTargets::PlainTargets(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args, size_t slots) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto* unannounced = unannounced_writes(op, args);
  auto is_unannounced = [&](const c10::Argument& argument) {
    if (!unannounced) return false;
    auto& names = unannounced->arguments;
    return std::find(names.begin(), names.end(), argument.name()) != names.end();
  };
  for (size_t i = 0; i < args.size(); ++i) {
    auto& argument = op.schema().arguments()[i];
    bool is_written = (argument.alias_info() && argument.alias_info()->isWrite()) || is_unannounced(argument);
    if (!is_written) continue;
    for (auto& tensor : tensors_in(args[i])) {
      if (tensor.defined() && !is_per_rank(tensor)) add(c10::toString(op.operator_name()), args, tensor, slots);
    }
  }
}

void PlainTargets::add(const std::string& op, c10::ArrayRef<c10::IValue> args, const at::Tensor& tensor, size_t slots) {
  Target target;
  if (is_plain(tensor)) target.seers = seers_of(tensor, args);
  TORCH_CHECK_VALUE(
      tensor.storage().use_count() == target.seers.size(), "[", op, "] writes a value per ",
      "simulated rank into a plain tensor of shape ", tensor.sizes(), " whose memory other tensors see, too. ",
      "Let go of its views and of what data() and detach() returned, or write to a tensor that is one per ",
      "rank, such as zeros_like of one.");
  auto bytes = bytes_of(tensor.storage());
  target.memory.push_back(tensor.storage());
  for (size_t slot = 1; slot < slots; ++slot) target.memory.push_back(bytes.clone().storage());
  for (auto& seer : target.seers) {
    target.plain.push_back(copy_of(seer));
    Shards values;
    for (auto& memory : target.memory) values.push_back(over(memory, seer));
    seer.unsafeGetTensorImpl()->shallow_copy_from(per_rank(std::move(values)).getIntrusivePtr());
  }
  targets_.push_back(std::move(target));
}

void PlainTargets::finish() {
  at::AutoDispatchBelowADInplaceOrView guard;
  for (auto& target : targets_) {
    if (target.is_as_it_was() && target.is_equal()) target.become_plain();
  }
  targets_.clear();
}

PlainTargets::~PlainTargets() {
  for (auto& target : targets_) target.become_plain();
}

void become_per_rank(const at::Tensor& tensor, size_t slots) {
  at::AutoDispatchBelowADInplaceOrView guard;
  PlainTargets targets;
  targets.add("become_per_rank", {}, tensor, slots);
  targets.targets_.clear();
}

void note_leaf() {
  if (C10_LIKELY(torch::autograd::get_current_graph_task_id() < 0)) return;
  auto node = torch::autograd::get_current_node();
  auto* leaf = node ? dynamic_cast<torch::autograd::AccumulateGrad*>(node.get()) : nullptr;
  if (leaf && is_plain(leaf->variable)) leaves().note(leaf->variable);
}

}  // namespace intarsia
