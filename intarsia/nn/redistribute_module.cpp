#include "intarsia/nn/redistribute_module.h"

#include <torch/nn/module.h>

#include "intarsia/comm/trace.h"
#include "intarsia/nn/rollback.h"
#include "intarsia/tensor/to_mesh.h"

namespace intarsia {
namespace {

const Layout* layout_on(const DeviceMesh& mesh, const Placements& placements, const at::Tensor& tensor,
                        const std::string& name) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), "[redistribute] the plan gives ", name,
                    str(placements), ", but ", mesh.text(), " has ", mesh.ndim(), mesh.ndim() == 1 ? " axis" : " axes",
                    ". Give one placement per axis.");
  return Layout::get(mesh, normalized(placements, tensor.dim(), "redistribute"));
}

// Tensors that share an exchange, each with a function to call when it has arrived.
class Removal {
 public:
  Removal(const DeviceMesh& mesh, const PlacementPlan& plan) : mesh_(mesh), plan_(plan) {}

  void add(const std::string& name, const at::Tensor& tensor, std::function<void(const at::Tensor&)> arrive) {
    auto placements = plan_(name, tensor);
    tensors_.push_back(tensor.detach());
    layouts_.push_back(layout_on(mesh_, placements, tensor, "\"" + name + "\" "));
    arrivals_.push_back(std::move(arrive));
  }

  void run() {
    CauseScope cause("redistribute", false);
    auto moved = moved_to_meshes(tensors_, layouts_);
    for (size_t i = 0; i < moved.size(); ++i) arrivals_[i](moved[i]);
  }

 private:
  const DeviceMesh& mesh_;
  const PlacementPlan& plan_;
  std::vector<at::Tensor> tensors_;
  std::vector<const Layout*> layouts_;
  std::vector<std::function<void(const at::Tensor&)>> arrivals_;
};

}  // namespace

std::vector<at::Tensor> redistribute(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                     const std::vector<Placements>& placements) {
  TORCH_CHECK_VALUE(tensors.size() == placements.size(), "[redistribute] ", tensors.size(), " tensors, but ",
                    placements.size(), " lists of placements. Give one each.");
  std::vector<const Layout*> layouts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_TYPE(is_dtensor(tensors[i]),
                     "[redistribute] takes distributed tensors. Distribute the plain ones first.");
    layouts.push_back(layout_on(mesh, placements[i], tensors[i], ""));
  }
  CauseScope cause("redistribute", false);
  return moved_to_meshes(tensors, layouts);
}

void redistribute(ModuleRef given, const DeviceMesh& mesh, const PlacementPlan& plan) {
  auto& module = *given;
  at::NoGradGuard no_grad;
  check_not_sharded("redistribute", module);
  Rollback rollback(module);
  Removal removal(mesh, plan);
  for (auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (auto& item : items) {
      auto tensor = item.value();
      if (!tensor.defined() || !is_dtensor(tensor)) continue;
      auto grad = tensor.grad();
      removal.add(item.key(), tensor, [tensor](auto& data) { tensor.set_data(data); });
      if (!grad.defined()) continue;
      tensor.mutable_grad() = at::Tensor();
      removal.add(item.key(), grad, [tensor](auto& data) { tensor.mutable_grad() = data; });
    }
  }
  removal.run();
  rollback.complete();
}

StateDict redistribute(const StateDict& state, const DeviceMesh& mesh, const PlacementPlan& plan) {
  at::NoGradGuard no_grad;
  StateDict result;
  Removal removal(mesh, plan);
  for (auto& item : state) {
    result.insert(item.key(), item.value());
    if (!is_dtensor(item.value())) continue;
    removal.add(item.key(), item.value(), [&result, name = item.key()](auto& data) { result[name] = data; });
  }
  removal.run();
  return result;
}

}  // namespace intarsia
