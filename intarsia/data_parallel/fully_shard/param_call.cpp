#include "intarsia/data_parallel/fully_shard/param_call.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/data_parallel/fully_shard/param_op_traits.h"
#include "intarsia/data_parallel/fully_shard/param_use.h"
#include "intarsia/data_parallel/leaf_hooks.h"
#include "intarsia/dispatch/fan_out.h"
#include "intarsia/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

using Stack = torch::jit::Stack;

void look_at(ParamCall& call, const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) return;
  auto handle = handle_of(tensor);
  if (handle.owner) {
    bool is_known = std::find(call.owners.begin(), call.owners.end(), handle.owner) != call.owners.end();
    if (!is_known) call.owners.push_back(handle.owner);
    bool is_part = handle.kind == HandleKind::whole && !handle.owner->is_handle_of_whole(handle.index, tensor);
    if (written) call.written.push_back({handle, is_part});
    call.has_leaf = call.has_leaf || handle.kind == HandleKind::leaf;
    call.has_whole = call.has_whole || handle.kind == HandleKind::whole;
  } else if (handle.kind == HandleKind::computed) {
    call.has_computed = true;
    call.writes_computed = call.writes_computed || written;
  } else if (handle.kind == HandleKind::undecided) {
    call.undecided.push_back(tensor);
  } else if (is_dtensor(tensor)) {
    call.others.push_back(tensor);
  } else {
    call.meets_plain = call.meets_plain || tensor.dim() > 0;
    call.meets_number = call.meets_number || !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    call.meets_per_rank = call.meets_per_rank || is_per_rank(tensor);
  }
}

ParamCall look_at_arguments(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> given) {
  ParamCall call;
  auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto* alias = arguments[i].alias_info();
    for (auto& tensor : tensors_in(given[i])) look_at(call, tensor, alias && alias->isWrite());
  }
  auto& traits = param_traits_of(op);
  if (traits.by_element) {
    call.meets_plain = call.meets_plain && meet_at_one_index(given);
    call.meets_number = false;
  }
  // In forward new_zeros makes a tensor of as many rows as this rank has.
  call.other_sizes = traits.names_sizes && given[1].toIntVector() != given[0].toTensor().sizes();
  return call;
}

ParamUse use_of(const ParamOpTraits& op, const ParamCall& call, const ParamOwner& owner) {
  ParamUse use;
  use.writes = !call.written.empty();
  use.meets_plain = call.meets_plain;
  use.in_forward = owner.is_pinned();
  use.in_formula = is_in_backward();
  use.is_recorded = call.has_leaf && at::GradMode::is_enabled();
  use.meets_dtensor = !call.others.empty();
  auto lies_beside = [&](auto& other) { return owner.lies_on(mesh_of(other)); };
  use.meets_shards = std::any_of(call.others.begin(), call.others.end(), lies_beside) ||
                     (!call.meets_number && std::any_of(call.undecided.begin(), call.undecided.end(), lies_beside));
  use.meets_whole = call.has_whole || call.has_computed || owner.is_asked();
  bool casts_handle = op.casts && !call.has_leaf;  // state_dict["w"].cpu(); in forward it is a leaf that is cast
  use.keeps_shards = (op.keeps_shards && !call.other_sizes) || casts_handle;
  return use;
}

// Where a parameter is shown whole, and for a part of one, a write is that of a plain tensor: every rank makes it. The
// values of per-rank tensors differ, and distributed ones, such as a gradient, are for shards.
bool writes_whole(const ParamCall& call) {
  auto allows = [](auto& one) {
    auto& [handle, is_part] = one;
    return (is_part || handle.owner->is_asked()) && handle.owner->can_write_whole(handle.index);
  };
  return !call.written.empty() && call.others.empty() && !call.meets_per_rank &&
         std::all_of(call.written.begin(), call.written.end(), allows);
}

bool decides_for_whole(const ParamCall& call) {
  bool meets_values = call.meets_plain || (call.meets_number && call.written.empty()) || call.writes_computed;
  return call.others.empty() && (meets_values || !call.whole.empty() || is_in_backward());
}

}  // namespace

ParamCall read_param_call(const c10::OperatorHandle& op, const Stack& stack) {
  auto call = look_at_arguments(op, at::ArrayRef(stack).slice(stack.size() - op.schema().arguments().size()));
  call.writes_whole = writes_whole(call);
  for (auto& owner : call.owners) {
    bool whole = call.writes_whole || row_of(use_of(param_traits_of(op), call, *owner)).sees == ParamValue::whole;
    if (whole) call.whole.push_back(owner);
  }
  call.undecided_whole = decides_for_whole(call);
  return call;
}

}  // namespace intarsia
