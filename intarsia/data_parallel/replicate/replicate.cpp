#include "intarsia/data_parallel/replicate/replicate.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "intarsia/data_parallel/module_names.h"
#include "intarsia/data_parallel/replicate/reducer.h"
#include "intarsia/data_parallel/replicate/unaveraged.h"
#include "intarsia/data_parallel/sync_module_states.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using Addresses = std::set<const c10::TensorImpl*>;

std::shared_ptr<Reducer> reducer_of(const at::Tensor& leaf) {
  return std::dynamic_pointer_cast<Reducer>(watcher_of(leaf));
}

Addresses ignored_by(const ReplicateOptions& options) {
  Addresses ignored;
  for (auto& tensor : options.ignored_parameters) ignored.insert(tensor.unsafeGetTensorImpl());
  for (auto* module : options.ignored_modules) {
    TORCH_CHECK_VALUE(module, "[replicate] an ignored module is null. Give addresses of modules.");
    for (auto& tensors : {module->parameters(), module->buffers()}) {
      for (auto& tensor : tensors) ignored.insert(tensor.unsafeGetTensorImpl());
    }
  }
  return ignored;
}

// Each tensor once, under its first name; `keep` says which.
template <class Items, class Keep>
NamedTensors listed(const Items& items, Addresses& seen, Keep keep) {
  NamedTensors tensors;
  for (auto& item : items) {
    auto& tensor = item.value();
    if (tensor.defined() && keep(tensor) && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      tensors.emplace_back(item.key(), tensor);
    }
  }
  return tensors;
}

}  // namespace

const DeviceMesh& Replica::mesh() const { return reducer_->mesh(); }
void Replica::set_requires_gradient_sync(bool syncs) { reducer_->set_syncs(syncs); }
void Replica::register_comm_hook(CommHook hook) { reducer_->set_comm_hook(std::move(hook)); }
std::vector<std::vector<std::string>> Replica::buckets() const { return reducer_->bucket_names(); }
void Replica::join(const std::function<void()>& body, bool divide_by_initial_world_size) {
  reducer_->join(body, divide_by_initial_world_size);
}

Replica replicate(ModuleRef given, const DeviceMesh& mesh, const ReplicateOptions& options) {
  auto& module = *given;
  auto name = type_name(module);
  auto seen = ignored_by(options);
  auto find_unaveraged = unaveraged_in(module, options.ignored_parameters, options.ignored_modules);
  size_t taken = 0;
  auto is_free = [&](const at::Tensor& tensor) {
    bool watched = watcher_of(tensor) != nullptr;
    taken += watched;
    return !watched && (tensor.is_floating_point() || tensor.is_complex());
  };
  auto parameters = listed(module.named_parameters(), seen, is_free);
  bool any = std::any_of(parameters.begin(), parameters.end(), [](auto& item) { return item.second.requires_grad(); });
  TORCH_CHECK(any || !taken, "[replicate] all parameters of ", name, " are replicated or sharded already.");
  TORCH_CHECK(any, "[replicate] no parameter of ", name, " requires grad, so there is nothing to average.");
  auto buffers = listed(module.named_buffers(), seen, [](auto&) { return true; });
  auto reducer = make_reducer(&module, name, mesh, parameters, buffers, options, std::move(find_unaveraged));
  return Replica(std::move(reducer));
}

Replica replicate(ModuleRef module, const ReplicateOptions& options) {
  return replicate(module, init_device_mesh(at::kCPU, {current_world("replicate").size()}, {"dp"}), options);
}

Replica replica_of(ConstModuleRef given) {
  auto& module = *given;
  std::shared_ptr<Reducer> found;
  for (auto& leaf : module.parameters()) {
    auto reducer = reducer_of(leaf);
    if (reducer && reducer->module() == &module) found = std::move(reducer);
  }
  TORCH_CHECK_VALUE(found, "[replica_of] ", type_name(module), " is not replicated. Call replicate on it first.");
  return Replica(std::move(found));
}

NoSync::NoSync(ConstModuleRef module) {
  for (auto& leaf : module->parameters()) {
    auto reducer = reducer_of(leaf);
    if (!reducer || !reducer->syncs()) continue;
    reducer->set_syncs(false);
    reducers_.push_back(std::move(reducer));
  }
}

NoSync::~NoSync() {
  for (auto& reducer : reducers_) reducer->set_syncs(true);
}

}  // namespace intarsia
