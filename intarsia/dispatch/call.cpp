#include "intarsia/dispatch/call.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/numbers.h"
#include "intarsia/propagate/guide.h"
#include "intarsia/redistribute/run/run.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/simulation/twins/twins.h"
#include "intarsia/tensor/policy.h"

namespace intarsia {
namespace {

// Takes the mesh from the tensor that leads: the first one of more than one element, or else the first of all.
void find_mesh(Call& call, const at::Tensor& tensor, bool& found) {
  if (found || !is_dtensor(tensor)) return;
  found = tensor.numel() != 1;
  if (found || !call.mesh.defined()) call.mesh = body_of(tensor).layout->mesh();
}

// See Note [Numbers of other meshes].
bool becomes_number(const Call& call, const Operand& operand) {
  auto& written = call.op.written;
  return operand.tensor.numel() == 1 && std::find(written.begin(), written.end(), operand.arg) == written.end() &&
         is_number_of(operand.body->layout->mesh(), call.mesh);
}

[[noreturn]] void refuse_meshes(const std::string& op, const DeviceMesh& a, const DeviceMesh& b) {
  auto of_world = [](const DeviceMesh& mesh) {
    bool current = is_current(mesh.world());
    return mesh.text() + " of " + mesh.world().text() + (current ? "" : ", which is not the current world");
  };
  TORCH_CHECK(&a.world() == &b.world(), "[", op, "] its tensors lie on meshes of two worlds: ", of_world(a), "; and ",
              of_world(b),
              ". A world ends with finalize() or with its scope. Make meshes and tensors of the current one anew.");
  TORCH_CHECK(
      false, worded_by_guide(
                 op, c10::str("[", op, "] its tensors lie on different meshes: ", a.text(), " and ", b.text(),
                              ". Bring them to one mesh first (full_tensor and distribute_tensor, or redistribute).")));
}

void find_operand(Call& call, const at::Tensor& tensor, int arg, int index) {
  auto* body = is_dtensor(tensor) ? &body_of(tensor) : nullptr;
  call.operands.push_back({tensor, body, arg, index, body ? body->layout : nullptr});
  if (!body || call.mesh == body->layout->mesh()) return;
  if (!becomes_number(call, call.operands.back())) refuse_meshes(call.op.name, call.mesh, body->layout->mesh());
  call.operands.back().layout = Layout::replicated(call.mesh);
}

// See Note [Numbers of other meshes].
void bring_number(const Call& call, Operand& operand) {
  CauseScope cause(call.op.name.c_str(), true);
  operand.tensor = number_on(operand.tensor, call.mesh);
  operand.body = &body_of(operand.tensor);
}

// Checks that every rank holds the same values.
void verify_same(const Op& op, const at::Tensor& tensor, const DeviceMesh& mesh) {
  Shards mine, first;
  for (size_t slot = 0; slot < mesh.slots().size(); ++slot) {
    mine.push_back(tensor);
    first.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  }
  CauseScope cause(op.name.c_str(), true);
  auto& everyone = Axis::whole(mesh);
  everyone.broadcast(first, 0);
  Shards verdicts;  // shared, so that every rank gets the error and none is left waiting
  for (size_t slot = 0; slot < mine.size(); ++slot) {
    verdicts.push_back(at::scalar_tensor(at::equal(mine[slot], first[slot]), at::kLong));
  }
  verdicts = everyone.all_reduce(verdicts, ReduceOp::min);
  bool same = verdicts.empty() || verdicts[0].item<int64_t>() == 1;
  TORCH_CHECK_VALUE(same, "[", op.name, "] a plain tensor of shape ", tensor.sizes(), " differs between the ranks of ",
                    mesh.text(), ". Distribute it with distribute_tensor or from_local.");
}

// If one of several outputs has no use, autograd's formulas pass plain zeros as its gradient.
bool is_missing_gradient(const at::Tensor& tensor) {
  return torch::autograd::get_current_graph_task_id() >= 0 && (tensor.is_meta() || !at::any(tensor).item<bool>());
}

// The layout of a tensor beside it, along the dims that they have in common.
const Layout* layout_beside(const Call& call, const at::Tensor& tensor) {
  Placements placements(call.mesh.ndim(), Replicate());
  for (auto& other : call.operands) {
    if (!other.body || other.tensor.dim() != tensor.dim() || tensor.numel() == 1) continue;
    auto* state = other.tensor.sizes() == tensor.sizes() ? layout_of_plain_state(other.layout) : nullptr;
    for (int64_t axis = 0; axis < call.mesh.ndim(); ++axis) {
      auto& p = (state ? state : other.layout)->placements()[axis];
      bool fits = is_shard(p) && cut_dim(p) < tensor.dim() && other.tensor.size(cut_dim(p)) == tensor.size(cut_dim(p));
      placements[axis] = fits ? p : Placement(Replicate());
    }
  }
  return Layout::get(call.mesh, placements);
}

void become_distributed(const Call& call, const at::Tensor& tensor) {
  auto* layout = layout_beside(call, tensor);
  Shards shards;
  for (auto& slot : call.mesh.slots()) shards.push_back(shard_of(tensor, *layout, slot.coordinate));
  shards = made_once(shards, [](auto& shard) { return shard.clone(); });
  auto cut = wrap(std::move(shards), layout, tensor.sizes(), tensor.strides(), tensor.dtype());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(cut.getIntrusivePtr());
}

// Indices that an autograd formula creates, the same on every rank, or keeps from a forward pass that has compared
// them.
bool are_places_of_formula(const at::Tensor& tensor) {
  if (torch::autograd::get_current_graph_task_id() < 0 || tensor.scalar_type() != at::kLong) return false;
  auto node = torch::autograd::get_current_node();
  return node && rule_table().makes_places(node->name());
}

bool is_beside_followed(const Call& call, const at::Tensor& tensor) {
  return std::any_of(call.operands.begin(), call.operands.end(), [&](auto& other) {
    return other.body && other.tensor.sizes() == tensor.sizes() && layout_of_plain_state(other.body->layout);
  });
}

const char* hint_at_state(const Call& call, const at::Tensor& tensor) {
  bool may_be_state = is_beside_followed(call, tensor);
  return may_be_state ? " If it is optimizer state from before fully_shard, make the optimizer after it." : "";
}

// See Note [State from before].
bool is_state_from_before(const Call& call, const Operand& operand) {
  auto& tensor = operand.tensor;
  bool is_plain = operand.index < 0 && !tensor.requires_grad() && tensor.is_cpu() && !is_per_rank(tensor);
  bool is_seen_once = is_plain && tensor.has_storage() && tensor.storage().use_count() == 1;
  return is_seen_once && is_beside_followed(call, tensor);
}

// See PlainArgument.
bool is_plain_argument(const Call& call, const c10::Argument& argument, PlainArgument kind) {
  auto& plain = call.op.traits->plain;
  auto found = plain.find(argument.name());
  return found != plain.end() && found->second == kind;
}

bool are_places(const Call& call, const at::Tensor& tensor, const c10::Argument& argument) {
  return tensor.scalar_type() == at::kLong && is_plain_argument(call, argument, PlainArgument::places);
}

// The policy for an argument. A tensor without elements has no values in which ranks could differ. Indices are compared
// instead of rejected.
PlainTensors policy_for(const Call& call, const at::Tensor& tensor, const c10::Argument& argument) {
  auto policy = plain_tensor_policy();
  if (policy != PlainTensors::error) return policy;
  policy = plain_tensor_policy_of_graph();
  if (policy != PlainTensors::error) {
    if (at::GradMode::is_enabled()) pass_on_policy(policy);
    return policy;
  }
  if (tensor.numel() == 0 || is_missing_gradient(tensor) || are_places_of_formula(tensor))
    return PlainTensors::replicate;
  return are_places(call, tensor, argument) ? PlainTensors::verify : policy;
}

// The number becomes one for all ranks if the simulated ranks agree on it; if not, the result could not be one tensor.
void admit_number_per_rank(const Call& call, Operand& operand) {
  auto& values = values_of(operand.tensor);
  for (auto& value : values) {
    bool same =
        value.is_meta() || at::equal(value, values[0]) || (at::isnan(value) & at::isnan(values[0])).all().item<bool>();
    TORCH_CHECK_VALUE(same, "[", call.op.name, "] a number that differs between the simulated ranks, ",
                      values[0].item(), " and ", value.item(),
                      ", meets a distributed tensor, which is one tensor for all of them. ",
                      "Use it on to_local(), and from_local() on the result.");
  }
  auto& first = values[0];
  operand.tensor = wrap(values, Layout::replicated(call.mesh), first.sizes(), first.strides(), first.dtype());
  operand.body = &body_of(operand.tensor);
}

void admit_plain(Call& call, Operand& operand) {
  auto& tensor = operand.tensor;
  auto& argument = call.op.handle.schema().arguments()[operand.arg];
  bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
  if (is_written && may_become_distributed(tensor, operand.index)) {
    become_distributed(call, tensor);
    operand.body = &body_of(tensor);
    return;
  }
  if (is_written && is_state_from_before(call, operand)) {
    verify_same(call.op, tensor, call.mesh);
    become_distributed(call, tensor);
    operand.body = &body_of(tensor);
    return;
  }
  TORCH_CHECK(!is_written, "[", call.op.name, "] argument \"", argument.name(), "\" is a plain tensor of shape ",
              tensor.sizes(), ", and a distributed result cannot be written into it. ",
              "Distribute it first, or call full_tensor on the others.", hint_at_state(call, tensor));
  if (tensor.numel() == 1 && tensor.device().is_cpu()) {
    if (is_per_rank(tensor)) admit_number_per_rank(call, operand);
    if (tensor.dim() > 0) show_number_to_guide(call.op.name);
    return;
  }
  if (is_plain_argument(call, argument, PlainArgument::drawn)) {
    operand.tensor = distribute_tensor(tensor, call.mesh, Layout::replicated(call.mesh)->placements());
    operand.body = &body_of(operand.tensor);
    return;
  }
  auto policy = policy_for(call, tensor, argument);
  TORCH_CHECK(policy != PlainTensors::error, "[", call.op.name, "] got mixed torch.Tensor and DTensor: argument \"",
              argument.name(), "\" is a plain tensor of shape ", tensor.sizes(), ", while others lie on ",
              call.mesh.text(),
              ". Distribute it with distribute_tensor or from_local, the parameters of a module with ",
              "distribute_module, or open a PlainTensorScope(PlainTensors::replicate).", hint_at_state(call, tensor));
  if (policy == PlainTensors::verify) verify_same(call.op, tensor, call.mesh);
  Shards shards;
  for (size_t slot = 0; slot < call.mesh.slots().size(); ++slot) shards.push_back(value_at(tensor, slot));
  operand.tensor =
      wrap(std::move(shards), Layout::replicated(call.mesh), tensor.sizes(), tensor.strides(), tensor.dtype());
  operand.body = &body_of(operand.tensor);
}

}  // namespace

// A plain tensor into which a distributed value is written becomes distributed in place if it is zeros created by
// autograd (the gradient of max(dim) writes into such) or a number (`total += loss`), which is taken as the same on all
// ranks wherever it is read as well. Not if other tensors see its memory: they would miss the write.
bool may_become_distributed(const at::Tensor& tensor, int index) {
  return index < 0 && !tensor.requires_grad() && tensor.is_cpu() && !is_per_rank(tensor) && tensor.has_storage() &&
         tensor.storage().use_count() == 1 && (tensor.numel() == 1 || is_missing_gradient(tensor));
}

// The layout that a plain operand gets when it is admitted.
static const Layout* future_layout(const Call& call, const Operand& operand) {
  auto& tensor = operand.tensor;
  auto& written = call.op.written;
  bool is_written = std::find(written.begin(), written.end(), operand.arg) != written.end();
  if (is_written) return layout_beside(call, tensor);
  bool is_number = tensor.numel() == 1 && tensor.device().is_cpu() && !is_per_rank(tensor);
  return is_number ? nullptr : Layout::replicated(call.mesh);
}

Call look_at_call(const Op& op, c10::ArrayRef<c10::IValue> args) {
  Call call{op, args, {}, {}};
  bool found = false;
  for_each_tensor(op, args, [&](const at::Tensor& tensor, int, int) { find_mesh(call, tensor, found); });
  for_each_tensor(op, args,
                  [&](const at::Tensor& tensor, int arg, int index) { find_operand(call, tensor, arg, index); });
  for (auto& operand : call.operands) {
    if (!operand.body && operand.tensor.defined()) operand.layout = future_layout(call, operand);
  }
  return call;
}

void admit_operands(Call& call) {
  for (auto& operand : call.operands) {
    if (operand.body && operand.body->layout->mesh() != call.mesh) bring_number(call, operand);
  }
  for (auto& operand : call.operands) {
    if (operand.body || !operand.tensor.defined()) continue;
    admit_plain(call, operand);
    operand.layout = operand.body ? operand.body->layout : nullptr;
  }
}

Call read_call(const Op& op, c10::ArrayRef<c10::IValue> args) {
  auto call = look_at_call(op, args);
  admit_operands(call);
  return call;
}

}  // namespace intarsia
