// Norms of whole tensors that are sharded, and stacks of numbers of several meshes: what clip_grad_norm_ is composed
// of.

#include "intarsia/ops/reductions/total_norms.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "intarsia/comm/trace.h"
#include "intarsia/dispatch/numbers.h"
#include "intarsia/ops/along/joint_mesh.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/ops/reductions/waiting_norms.h"
#include "intarsia/rules/table.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

constexpr const char* kStack = "aten::stack";

// norm(self, ord), norm(self, ord, dtype): if its order or its layout does not allow a sum of powers, it is a vector
// norm.
void total_norm(Stack& stack) {
  auto self = stack[0].toTensor();
  auto given = ord_of(stack[1]);
  auto dtype = stack.size() > 2 ? dtype_of(stack[2]) : std::nullopt;
  stack = {at::linalg_vector_norm(self, given, std::nullopt, false, dtype)};
}

// Note [Plain numbers among distributed ones]
// Under tensor parallelism some gradients are plain: those of layers that every rank computes identically. Each rank
// has its own copy of their norms, and what is computed from them and from numbers that ranks share must not differ
// between ranks. So they are sent with the norms that wait on the mesh, all ranks continue with their mean, and if they
// differ by more than rounding it is an error on all ranks. Numbers of a mesh of fewer ranks ("dp" among numbers of
// ("dp", "tp")) are treated in the same way. Among pending maxima (a maximum norm) they are sent as such, with their
// negatives, which give the minimum.

constexpr double kSpread = 1e-3;  // relative; smaller differences are rounding

// Numbers, plain and distributed, and the values that the ranks of `mesh` have of them.
struct Stacked {
  DeviceMesh mesh;  // of the result
  std::vector<at::Tensor> numbers;
  std::vector<Shards> values;  // per number, on the slots of that mesh; empty while it is not known
};

size_t slot_of(const DeviceMesh& mesh, int64_t rank) {
  auto& slots = mesh.slots();
  return std::find_if(slots.begin(), slots.end(), [&](auto& slot) { return slot.rank == rank; }) - slots.begin();
}

at::Tensor as_list(const std::vector<at::Tensor>& numbers, const Layout& layout) {
  Shards lists;
  auto type = numbers[0].scalar_type();
  for (auto& number : numbers) type = c10::promoteTypes(type, number.scalar_type());
  for (size_t slot = 0; slot < layout.mesh().slots().size(); ++slot) {
    std::vector<at::Tensor> mine;
    for (auto& number : numbers) mine.push_back(body_of(number).shards()[slot].reshape({}).to(type));
    lists.push_back(at::stack(mine));
  }
  std::vector<int64_t> sizes = {static_cast<int64_t>(numbers.size())};
  return wrap(std::move(lists), &layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(type));
}

// The values of all numbers of one mesh, on the slots of the result's; undefined on ranks that have none. Numbers with
// the same pending reductions are reduced together.
void read_mesh(const DeviceMesh& mesh, Stacked& stacked) {
  auto& numbers = stacked.numbers;
  std::vector<const Layout*> layouts;
  for (auto& number : numbers) {
    auto* layout = is_dtensor(number) ? &layout_of(number) : nullptr;
    bool known = std::find(layouts.begin(), layouts.end(), layout) != layouts.end();
    if (layout && layout->mesh() == mesh && !known) layouts.push_back(layout);
  }
  for (auto* layout : layouts) {
    std::vector<at::Tensor> here;
    std::vector<size_t> places;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (is_dtensor(numbers[i]) && &layout_of(numbers[i]) == layout) here.push_back(numbers[i]), places.push_back(i);
    }
    auto values = shards_in(as_list(here, *layout), Layout::replicated(mesh));
    for (size_t i = 0; i < places.size(); ++i) {
      for (auto& slot : stacked.mesh.slots()) {
        auto mine = slot_of(mesh, slot.rank);
        bool has = mine < values.size();
        stacked.values[places[i]].push_back(has ? values[mine][static_cast<int64_t>(i)] : at::Tensor());
      }
    }
  }
}

// Ranks of the result's mesh continue with one value for each of these numbers.
void agree_on(const std::vector<size_t>& places, Stacked& stacked) {
  std::vector<Shards> numbers;
  for (auto i : places) numbers.push_back(stacked.values[i]);
  if (numbers.empty()) return;
  auto agreed = agreed_numbers(stacked.mesh, numbers, kStack);
  for (size_t i = 0; i < places.size(); ++i) stacked.values[places[i]] = agreed[i];
}

bool is_pending_maximum(const at::Tensor& number) {
  if (!is_dtensor(number)) return false;
  auto& placements = placements_of(number);
  return std::any_of(placements.begin(), placements.end(), [](auto& p) { return pending_op(p) == ReduceOp::max; });
}

// Appends the ranks' numbers as terms of a maximum, and their negatives after all others.
void become_maxima(const std::vector<size_t>& plain, Stacked& stacked) {
  auto* layout = Layout::get(stacked.mesh, Placements(stacked.mesh.ndim(), Partial(ReduceOp::max)));
  for (auto i : plain) {
    Shards negatives;
    for (auto& value : stacked.values[i]) negatives.push_back(-value);
    auto dtype = stacked.numbers[i].dtype();
    stacked.numbers.push_back(wrap(std::move(negatives), layout, {}, {}, dtype));
    stacked.values.emplace_back();
    stacked.numbers[i] = wrap(std::move(stacked.values[i]), layout, {}, {}, dtype);
    stacked.values[i] = {};
  }
}

// Takes the negatives off again; they are needed only to check that the numbers agree.
void check_maxima(const std::vector<size_t>& plain, size_t count, Stacked& stacked) {
  for (size_t i = 0; i < plain.size() && stacked.values.size() > count; ++i) {
    for (size_t slot = 0; slot < stacked.mesh.slots().size(); ++slot) {
      auto& largest = stacked.values[plain[i]][slot];
      if (largest.is_meta()) continue;
      auto most = largest.item<double>(), least = -stacked.values[count + i][slot].item<double>();
      auto spread = kSpread * std::max(std::abs(most), std::abs(least));
      bool same = !std::isfinite(most) || !std::isfinite(least) || most - least <= spread;
      TORCH_CHECK_VALUE(
          same, "[", kStack, "] a number that comes from plain tensors is to be joined with numbers of all ranks of ",
          stacked.mesh.text(), ", but differs between them: it is between ", least, " and ", most,
          ". Plain tensors must be equal on all ranks there: average their gradients, ", "or distribute them.");
    }
  }
  stacked.numbers.resize(count);
  stacked.values.resize(count);
}

at::Tensor result_of(const Stacked& stacked) {
  auto type = stacked.numbers[0].scalar_type();
  for (auto& number : stacked.numbers) type = c10::promoteTypes(type, number.scalar_type());
  Shards shards;
  for (size_t slot = 0; slot < stacked.mesh.slots().size(); ++slot) {
    std::vector<at::Tensor> mine;
    for (auto& values : stacked.values) mine.push_back(values[slot].reshape({}).to(type));
    shards.push_back(at::stack(mine));
  }
  std::vector<int64_t> sizes = {static_cast<int64_t>(stacked.numbers.size())};
  return wrap(std::move(shards), Layout::replicated(stacked.mesh), sizes, c10::contiguous_strides(sizes),
              c10::scalarTypeToTypeMeta(type));
}

// The numbers, plain or on several meshes, in one tensor on a mesh of all ranks that have one.
at::Tensor stacked(const std::vector<at::Tensor>& numbers, const std::vector<DeviceMesh>& meshes) {
  Stacked result{joint_mesh(meshes, kStack), numbers, std::vector<Shards>(numbers.size())};
  std::vector<size_t> apart, plain;
  for (auto& mesh : meshes) {
    if (mesh != result.mesh) read_mesh(mesh, result);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (is_dtensor(numbers[i])) {
      if (!is_number_of(mesh_of(numbers[i]), result.mesh)) apart.push_back(i);
      continue;
    }
    plain.push_back(i);
    auto slots = result.mesh.slots().size();
    for (size_t slot = 0; slot < slots; ++slot) result.values[i].push_back(value_at(numbers[i], slot));
  }
  bool message_is_due = !apart.empty() || has_waiting_norms(result.mesh);
  if (message_is_due) {
    if (!plain.empty()) check_all_have_numbers(result.mesh, kStack);
    apart.insert(apart.end(), plain.begin(), plain.end());
  } else if (std::any_of(numbers.begin(), numbers.end(), is_pending_maximum)) {
    become_maxima(plain, result);
  }
  agree_on(apart, result);
  read_mesh(result.mesh, result);
  check_maxima(plain, numbers.size(), result);
  return result_of(result);
}

bool is_cut(const Layout& layout) {
  auto& placements = layout.placements();
  return std::any_of(placements.begin(), placements.end(), [](auto& placement) { return cut_dim(placement) >= 0; });
}

}  // namespace

Lowering join_numbers(const CutCall& c, int64_t ndim) {
  std::vector<DeviceMesh> meshes;
  bool plain = false;
  for (size_t i = 0; i < c.now.size(); ++i) {
    if (c.input(i).dim() != ndim || c.input(i).numel() != 1) return {};
    plain = plain || !c.is_distributed(i);
    if (!c.is_distributed(i)) continue;
    if (is_cut(*c.now[i])) return {};
    auto& mesh = c.now[i]->mesh();
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  }
  auto dim = c.call.int_arg("dim", 0);
  if (meshes.empty() || (meshes.size() < 2 && !plain) || (dim != 0 && dim != -1)) return {};
  return [meshes](Stack& stack) { stack = {stacked(stack[0].toTensorVector(), meshes)}; };
}

void add_total_norms(RuleTable& t) {
  t.always("aten::norm.Scalar", total_norm);
  t.always("aten::norm.ScalarOpt_dtype", total_norm);
  t.lower(kStack, [](const CutCall& c) { return join_numbers(c, 0); });
}

}  // namespace intarsia
