#include "intarsia/dispatch/errors.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include "intarsia/comm/agreement.h"
#include "intarsia/comm/trace.h"
#include "intarsia/tensor/policy.h"
#include "intarsia/watch/waiting.h"

namespace intarsia {
namespace {

// The types of errors that LibTorch's ops throw, as numbers that can be sent.
enum Kind : int64_t { any, index, value, type, not_implemented, linalg };

Kind kind_of(const std::exception& error) {
  if (dynamic_cast<const c10::IndexError*>(&error)) return index;
  if (dynamic_cast<const c10::ValueError*>(&error)) return value;
  if (dynamic_cast<const c10::TypeError*>(&error)) return type;
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return not_implemented;
  if (dynamic_cast<const c10::LinAlgError*>(&error)) return linalg;
  return any;
}

[[noreturn]] void throw_as(int64_t kind, const std::string& text) {
  switch (kind) {
    case index: C10_THROW_ERROR(IndexError, text);
    case value: C10_THROW_ERROR(ValueError, text);
    case type: C10_THROW_ERROR(TypeError, text);
    case not_implemented: C10_THROW_ERROR(NotImplementedError, text);
    case linalg: C10_THROW_ERROR(LinAlgError, text);
    default: C10_THROW_ERROR(Error, text);
  }
}

struct Told {
  Kind kind;
  std::string text;
};

Told told(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    auto* ours = dynamic_cast<const c10::Error*>(&error);
    return {kind_of(error), ours ? ours->what_without_backtrace() : error.what()};
  }
}

// The member at `speaker` lets the others of its line know what it saw.
Told spread(const Axis& axis, int64_t speaker, const std::exception_ptr* mine) {
  std::string words;
  if (mine) {
    auto error = told(*mine);
    words = static_cast<char>(error.kind) + error.text;
  }
  auto said = exchange_texts(axis, words)[speaker];
  return {static_cast<Kind>(said[0]), said.substr(1)};
}

// Whether some rank holds nothing of a tensor that is not empty.
bool leaves_ranks_empty(const TensorForm& form, const Layout& layout) {
  if (form.numel() == 0) return false;
  auto& mesh = layout.mesh();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (c10::multiply_integers(local_shape(layout, form.sizes, mesh.coordinate_at(rank))) == 0) return true;
  }
  return false;
}

}  // namespace

std::vector<int64_t> agreeing_axes(const Rule& rule, const OpCall& call, c10::ArrayRef<const Layout*> in,
                                   const DeviceMesh& mesh) {
  std::vector<int64_t> axes;
  auto inputs = rule.local.refusable ? rule.local.refusable(call) : std::vector<size_t>();
  if (inputs.empty()) return axes;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i] && leaves_ranks_empty(call.inputs[i], *in[i])) inputs.push_back(i);
  }
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    auto is_cut = [&](size_t i) { return in[i] && !is_replicate(in[i]->placements()[axis]); };
    if (mesh.size(axis) > 1 && std::any_of(inputs.begin(), inputs.end(), is_cut)) axes.push_back(axis);
  }
  return axes;
}

void SlotErrors::raise_together(const std::string& op, const DeviceMesh& mesh,
                                const std::vector<int64_t>& agreeing) const {
  bool ask = !agreeing.empty() && !errors_are_local() && torch::autograd::get_current_graph_task_id() == -1;
  if (mesh.world().simulated()) {
    if (ask && recording()) record(mesh.world(), AgreementEvent{op, Axis::of(mesh, agreeing).name()});
    return raise_simulated(mesh, ask ? agreeing : std::vector<int64_t>());
  }
  if (!ask || mesh.slots().empty()) {
    if (!errors_.empty()) std::rethrow_exception(errors_[0].second);
    return;
  }
  CauseScope cause(op.c_str(), true);
  auto& axis = Axis::of(mesh, agreeing);
  auto first = axis.size() - exchange_max(axis, errors_.empty() ? 0 : axis.size() - axis.position(0));
  if (first == axis.size()) return;
  bool speaks = axis.position(0) == first;
  auto error = spread(axis, first, speaks ? &errors_[0].second : nullptr);
  if (speaks) std::rethrow_exception(errors_[0].second);
  throw_as(error.kind,
           error.text + "\n(" + names_of_ranks({axis.line().ranks[0][first]}) + " holds the value in question.)");
}

void SlotErrors::raise_simulated(const DeviceMesh& mesh, const std::vector<int64_t>& agreeing) const {
  if (errors_.empty()) return;
  auto& slots = mesh.slots();
  auto failed = [&](int64_t rank) {
    return std::any_of(errors_.begin(), errors_.end(), [&](auto& error) { return slots[error.first].rank == rank; });
  };
  std::vector<int64_t> failing, unaware;
  for (auto& slot : slots) {
    if (slot.group != slots[errors_[0].first].group) continue;
    auto line = mesh.line(slot, agreeing);
    if (failed(slot.rank)) failing.push_back(slot.rank);
    if (!failed(slot.rank) && std::none_of(line.begin(), line.end(), failed)) unaware.push_back(slot.rank);
  }
  if (unaware.empty()) std::rethrow_exception(errors_[0].second);
  auto error = told(errors_[0].second);
  throw_as(error.kind, error.text + "\n(Only " + names_of_ranks(failing) +
                           " would see this error in a job of processes, and " + names_of_ranks(unaware) +
                           " would go on.)");
}

}  // namespace intarsia
