// The check of a gradient scaler: divides all gradients by the scale and finds out whether all are finite.

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/dispatch/numbers.h"
#include "intarsia/ops/along/joint_mesh.h"
#include "intarsia/ops/along/settle_together.h"
#include "intarsia/ops/lists/lists.h"
#include "intarsia/rules/table.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

constexpr const char* kUnscale = "aten::_amp_foreach_non_finite_check_and_unscale_";

// The plain op's own checks, run on tensors of one element.
void check_as_plain(const std::vector<at::Tensor>& grads, const at::Tensor& found, const at::Tensor& scale) {
  auto alike = [](const at::Tensor& tensor) {
    return at::ones(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  };
  std::vector<at::Tensor> ones;
  for (auto& grad : grads) ones.push_back(at::ones({1}, at::TensorOptions(grad.scalar_type())));
  auto verdict = alike(found);
  at::_amp_foreach_non_finite_check_and_unscale_(ones, verdict, alike(scale));
}

std::vector<DeviceMesh> meshes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<DeviceMesh> meshes;
  for (auto& tensor : tensors) {
    if (!is_dtensor(tensor)) continue;
    bool known = std::find(meshes.begin(), meshes.end(), mesh_of(tensor)) != meshes.end();
    if (!known) meshes.push_back(mesh_of(tensor));
  }
  return meshes;
}

// Terms that are all finite may have an infinite sum, so pending sums run first.
void settle(const std::vector<at::Tensor>& grads) {
  settle_together(grads);
  for (auto& grad : grads) {
    if (is_dtensor(grad) && layout_of(grad).has_partial()) body_of(grad).settle_in_place();
  }
}

size_t place_of(const DeviceMesh& mesh, int64_t rank) {
  auto is_it = [&](auto& slot) { return slot.rank == rank; };
  return std::find_if(mesh.slots().begin(), mesh.slots().end(), is_it) - mesh.slots().begin();
}

// Unscales the gradients of one mesh; each rank's verdict goes to its slot on `all`.
void unscale_mesh(const std::vector<at::Tensor>& grads, const DeviceMesh& mesh, const at::Tensor& scale,
                  const DeviceMesh& all, Shards& verdicts) {
  std::vector<at::Tensor> here;
  for (auto& grad : grads) {
    if (is_dtensor(grad) && mesh_of(grad) == mesh) here.push_back(grad);
  }
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    std::vector<at::Tensor> mine;
    for (auto& grad : here) mine.push_back(at_slot(grad, mesh, slot));
    auto& verdict = verdicts[place_of(all, mesh.slots()[slot].rank)];
    at::_amp_foreach_non_finite_check_and_unscale_(mine, verdict, at_slot(scale, mesh, slot));
  }
  for (auto& grad : here) body_of(grad).written();
}

// The same for plain gradients, of which every rank has its own copy.
void unscale_plain(const std::vector<at::Tensor>& grads, const at::Tensor& scale, Shards& verdicts) {
  std::vector<at::Tensor> plain;
  for (auto& grad : grads) {
    if (!is_dtensor(grad)) plain.push_back(grad);
  }
  if (plain.empty() || verdicts.empty()) return;
  auto verdict = at::zeros_like(verdicts[0]);
  auto number = is_dtensor(scale) ? number_on_no_mesh(scale, kUnscale) : scale;
  at::_amp_foreach_non_finite_check_and_unscale_(plain, verdict, number);
  for (size_t slot = 0; slot < verdicts.size(); ++slot) {
    verdicts[slot] = at::maximum(verdicts[slot], value_at(verdict, slot));
  }
}

void write_found(const at::Tensor& found, const Shards& verdicts, const DeviceMesh& all) {
  if (!is_dtensor(found)) {
    for (auto& verdict : verdicts) found.copy_(at::maximum(found, verdict.reshape(found.sizes())));
    return;
  }
  auto& mesh = mesh_of(found);
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    auto place = place_of(all, mesh.slots()[slot].rank);
    auto target = body_of(found).shards()[slot];
    target.copy_(at::maximum(target, verdicts[place].reshape(target.sizes())));
  }
  body_of(found).written();
}

// (grads, found, inverse scale): each rank checks its own shards, and one message informs all ranks of all meshes.
void unscale(Stack& stack) {
  auto grads = stack[0].toTensorVector();
  auto found = stack[1].toTensor(), scale = stack[2].toTensor();
  check_as_plain(grads, found, scale);
  auto tensors = grads;
  tensors.insert(tensors.end(), {found, scale});
  auto all = joint_mesh(meshes_of(tensors), kUnscale);
  for (auto& tensor : {found, scale}) {
    bool replicated = !is_dtensor(tensor) || layout_of(tensor).is_replicated();
    TORCH_CHECK_VALUE(replicated, "[", kUnscale,
                      "] found_inf and inv_scale are numbers that all ranks share, but one lies as ",
                      is_dtensor(tensor) ? str(layout_of(tensor)) : "", ". Give plain tensors or replicated ones.");
  }
  settle(grads);
  Shards verdicts;
  for (size_t slot = 0; slot < all.slots().size(); ++slot) {
    verdicts.push_back(at::zeros({1}, at::TensorOptions(found.scalar_type())));
  }
  for (auto& mesh : meshes_of(grads)) unscale_mesh(grads, mesh, scale, all, verdicts);
  unscale_plain(grads, scale, verdicts);
  verdicts = Axis::whole(all).all_reduce(verdicts, ReduceOp::max);
  write_found(found, verdicts, all);
  stack.clear();
}

}  // namespace

void add_unscale(RuleTable& t) { t.always(kUnscale, unscale); }

}  // namespace intarsia
