#include "intarsia/dispatch/twin_slots.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

bool is_cut_or_pending(const std::vector<const Layout*>& layouts, int64_t axis) {
  return std::any_of(layouts.begin(), layouts.end(),
                     [&](auto* l) { return l && !is_replicate(l->placements()[axis]); });
}

// The axes on which a rank's coordinate may matter. A rule's own function for a rank sees the coordinate, but on axes
// that shard nothing and leave nothing pending, all ranks give the same result.
std::vector<int64_t> axes_that_count(const Call& call, const Decision& decision) {
  std::vector<int64_t> axes;
  if (!call.op.rule || !call.op.rule->local.run || !decision.known_outputs) return axes;
  for (int64_t axis = 0; axis < call.mesh.ndim(); ++axis) {
    if (is_cut_or_pending(decision.seen_in, axis) || is_cut_or_pending(decision.out, axis)) axes.push_back(axis);
  }
  return axes;
}

bool same_place(const Slot& a, const Slot& b, const std::vector<int64_t>& axes) {
  return axes.empty() || (a.group == b.group && std::all_of(axes.begin(), axes.end(), [&](auto axis) {
                            return a.coordinate[axis] == b.coordinate[axis];
                          }));
}

// For each slot, the next one with the same first one; 0 for none.
std::vector<size_t> next_alike(const std::vector<size_t>& first) {
  std::vector<size_t> next(first.size(), 0), last(first.size());
  for (size_t slot = 0; slot < first.size(); ++slot) {
    if (first[slot] != slot) next[last[first[slot]]] = slot;
    last[first[slot]] = slot;
  }
  return next;
}

}  // namespace

c10::IValue made_from(const c10::IValue& result, c10::ArrayRef<at::Tensor> from, c10::ArrayRef<at::Tensor> to) {
  if (result.isTensor()) return made_from(result.toTensor(), from, to);
  if (!result.isTensorList()) return result;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : result.toTensorList()) list.push_back(made_from(tensor, from, to));
  return list;
}

TwinSlots::TwinSlots(const Call& call, const Decision& decision, const Inputs& inputs) : call_(call), inputs_(inputs) {
  auto& slots = call.mesh.slots();
  if (slots.size() <= 1 || call.op.is_random) return;
  for (auto& operand : call.operands) {
    written_.push_back(!call.op.is_out &&
                       std::find(call.op.written.begin(), call.op.written.end(), operand.arg) != call.op.written.end());
  }
  auto axes = axes_that_count(call, decision);
  auto hash = [&](size_t slot) {
    uint64_t sum = 0;
    for (auto& shards : inputs) sum = 31 * sum + (shards.empty() ? 0 : twin_hash(shards[slot]));
    return sum;
  };
  auto same = [&](size_t a, size_t b) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].empty()) continue;
      if (!(written_[i] ? may_write_once : are_twins)(inputs[i][a], inputs[i][b])) return false;
    }
    if (!same_place(slots[a], slots[b], axes)) return false;
    return decision.local_sizes.empty() || decision.local_sizes[a] == decision.local_sizes[b];
  };
  first_ = first_alike(slots.size(), hash, same);
  next_ = next_alike(first_);
}

std::vector<at::Tensor> TwinSlots::tensors_at(size_t slot) const {
  std::vector<at::Tensor> tensors;
  if (first_.empty()) return tensors;
  for (size_t i = 0; i < inputs_.size(); ++i)
    tensors.push_back(inputs_[i].empty() ? call_.operands[i].tensor : inputs_[i][slot]);
  return tensors;
}

void TwinSlots::write_for_others(size_t slot, WriteForTwins& writes) const {
  if (first_.empty()) return;
  for (auto other = next_[slot]; other; other = next_[other]) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (written_[i] && !inputs_[i].empty()) writes.add(inputs_[i][slot], inputs_[i][other]);
    }
  }
}

std::vector<c10::IValue> TwinSlots::results(const std::vector<c10::IValue>& of_first, size_t slot) const {
  auto from = tensors_at(first(slot)), to = tensors_at(slot);
  std::vector<c10::IValue> results;
  for (auto& value : of_first) results.push_back(made_from(value, from, to));
  return results;
}

}  // namespace intarsia
