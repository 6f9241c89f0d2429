#include "intarsia/dispatch/numbers.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/call.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

thread_local bool plain_elements_ = false;

bool same_value(const at::Tensor& a, const at::Tensor& b) {
  return a.is_meta() || at::equal(a, b) || (at::isnan(a) & at::isnan(b)).all().item<bool>();
}

bool wants_gradient(const at::Tensor& tensor) { return at::GradMode::is_enabled() && tensor.requires_grad(); }

bool is_number(const at::Tensor& tensor) { return tensor.numel() == 1 && !wants_gradient(tensor); }

}  // namespace

bool is_number_of(const DeviceMesh& from, const DeviceMesh& to) {
  if (&from.world() != &to.world()) return false;
  std::unordered_map<int64_t, int64_t> group_of;
  for (int64_t group = 0; group < from.group_count(); ++group) {
    for (auto rank : from.ranks(group)) group_of[rank] = group;
  }
  for (int64_t group = 0; group < to.group_count(); ++group) {
    auto ranks = to.ranks(group);
    auto first = group_of.find(ranks[0]);
    if (first == group_of.end()) return false;
    for (auto rank : ranks) {
      auto found = group_of.find(rank);
      if (found == group_of.end() || found->second != first->second) return false;
    }
  }
  return true;
}

at::Tensor number_on(const at::Tensor& number, const DeviceMesh& mesh) {
  auto& from = mesh_of(number);
  auto values = shards_in(number, Layout::replicated(from));
  Shards mine;
  for (auto& slot : mesh.slots()) {
    auto same_rank = [&](auto& other) { return other.rank == slot.rank; };
    auto found = std::find_if(from.slots().begin(), from.slots().end(), same_rank);
    TORCH_INTERNAL_ASSERT(found != from.slots().end());
    mine.push_back(values[found - from.slots().begin()]);
  }
  return wrap(std::move(mine), Layout::replicated(mesh), number.sizes(), number.strides(), number.dtype());
}

void check_all_have_numbers(const DeviceMesh& mesh, const char* op) {
  for (auto rank : mesh.world().hosted()) {
    auto is_it = [&](auto& slot) { return slot.rank == rank; };
    bool is_there = std::any_of(mesh.slots().begin(), mesh.slots().end(), is_it);
    TORCH_CHECK_VALUE(is_there, "[", op, "] a plain tensor meets a number on ", mesh.text(), ", of which rank ", rank,
                      " is no part. Bring the number to a mesh of all ranks with redistribute first.");
  }
}

at::Tensor number_on_no_mesh(const at::Tensor& number, const char* op) {
  auto& mesh = mesh_of(number);
  check_all_have_numbers(mesh, op);
  auto values = shards_in(number, Layout::replicated(mesh));
  bool same = std::all_of(values.begin(), values.end(), [&](auto& value) { return same_value(value, values[0]); });
  return same ? values[0] : per_rank(values);
}

bool is_plain_call(const Op& op, c10::ArrayRef<c10::IValue> args) {
  if (op.is_out || (op.written.empty() && !plain_elements_)) return false;
  if (!args.empty() && args[0].isTensor() && is_dtensor(args[0].toTensor())) return false;  // most calls
  bool fits = true, first = true, any = false;
  for_each_tensor(op, args, [&](const at::Tensor& tensor, int arg, int index) {
    if (!tensor.defined()) return;
    bool written = std::find(op.written.begin(), op.written.end(), arg) != op.written.end();
    if (std::exchange(first, false) || written) {
      fits = fits && !is_dtensor(tensor) && !(written && may_become_distributed(tensor, index));
    } else if (is_dtensor(tensor)) {
      fits = fits && is_number(tensor);
      any = true;
    }
  });
  return fits && any;
}

void run_plain_call(const Op& op, std::vector<c10::IValue>& arguments, std::vector<c10::IValue>& stack) {
  CauseScope cause(op.name.c_str(), true);
  for (auto& argument : arguments) {
    if (!argument.isTensor() || !is_dtensor(argument.toTensor())) continue;
    argument = number_on_no_mesh(argument.toTensor(), op.name.c_str());
  }
  op.handle.callBoxed(arguments);
  for (auto& value : arguments) stack.push_back(std::move(value));
}

PlainElementScope::PlainElementScope() : outer_(std::exchange(plain_elements_, true)) {}
PlainElementScope::~PlainElementScope() { plain_elements_ = outer_; }

}  // namespace intarsia
