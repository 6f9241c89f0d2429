// Norms of whole tensors that are cut. clip_grad_norm_ asks for the norm of one gradient after the other and only then
// looks at them: so a norm waits until somebody reads it, and all that wait on a mesh are summed in one all-reduce.

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/ops/layouts.h"
#include "intarsia/rules/families.h"
#include "intarsia/tensor/meta.h"

namespace intarsia {
namespace {

using Stack = std::vector<c10::IValue>;

// The sums of powers on one mesh that are still to be added up over its ranks.
class WaitingSums {
 public:
  explicit WaitingSums(const DeviceMesh& mesh) : mesh_(mesh) {}

  bool open() const { return totals_.empty(); }

  size_t add(Shards sums) {
    waiting_.push_back(std::move(sums));
    return waiting_.size() - 1;
  }

  // The total of sum `i` on each slot. The first to ask reduces all that wait.
  Shards total(size_t i) {
    if (mesh_.slots().empty()) return {};
    if (open()) reduce();
    Shards mine;
    for (auto& slot : totals_) mine.push_back(slot[static_cast<int64_t>(i)]);
    return mine;
  }

 private:
  void reduce() {
    CauseScope cause("aten::norm", true);
    for (size_t slot = 0; slot < mesh_.slots().size(); ++slot) {
      std::vector<at::Tensor> column;
      for (auto& sums : waiting_) column.push_back(sums[slot]);
      totals_.push_back(at::stack(column));
    }
    totals_ = Axis::whole(mesh_).all_reduce(totals_, ReduceOp::sum);
    waiting_.clear();
  }

  DeviceMesh mesh_;
  std::vector<Shards> waiting_;
  Shards totals_;  // per slot: one number per sum
};

std::shared_ptr<WaitingSums> waiting_on(const DeviceMesh& mesh) {
  static thread_local std::unordered_map<DeviceMesh, std::weak_ptr<WaitingSums>> open;
  auto sums = open[mesh].lock();
  if (!sums || !sums->open()) open[mesh] = sums = std::make_shared<WaitingSums>(mesh);
  return sums;
}

// Of the ranks that hold the same part, the first one counts.
bool counts(const Layout& layout, const Slot& slot) {
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    if (is_replicate(layout.placements()[axis]) && slot.coordinate[axis] != 0) return false;
  }
  return true;
}

Shards sums_of_powers(const at::Tensor& self, double ord, at::ScalarType type) {
  Shards sums;
  auto& slots = mesh_of(self).slots();
  auto& shards = meta_of(self).shards();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!counts(layout_of(self), slots[slot])) {
      sums.push_back(at::zeros({}, shards[slot].options().dtype(at::kDouble)));
      continue;
    }
    auto norm = at::linalg_vector_norm(shards[slot].to(type), ord).to(at::kDouble);
    sums.push_back(ord == 1 ? norm : at::pow(norm, ord));
  }
  return sums;
}

bool total_norm(Stack& stack, const c10::IValue& ord_value, std::optional<at::ScalarType> dtype) {
  auto self = stack[0].toTensor();
  auto ord = ord_value.isNone() ? 2.0 : ord_value.toScalar().toDouble();
  if (!is_dtensor(self) || layout_of(self).has_partial() || !is_cut(self, wrapped_dims({}, self.dim()))) return false;
  auto type = dtype.value_or(self.scalar_type());
  if (ord <= 0 || std::isinf(ord) || self.numel() == 0 || !at::isFloatingType(type)) return false;
  auto& mesh = mesh_of(self);
  auto batch = waiting_on(mesh);
  auto place = batch->add(sums_of_powers(self, ord, type));
  auto body = c10::make_intrusive<DTensorMeta>(Shards(), Layout::replicated(mesh));
  auto result = wrap(body, {}, {}, c10::scalarTypeToTypeMeta(type));
  body->arrive_later([batch, place, ord, type] {
    auto norms = batch->total(place);
    for (auto& norm : norms) norm = at::pow(norm, 1 / ord).to(type);
    return norms;
  });
  stack = {result};
  return true;
}

std::optional<at::ScalarType> dtype_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toScalarType());
}

at::Scalar ord_of(const c10::IValue& value) { return value.isNone() ? at::Scalar(2) : value.toScalar(); }

// stack of numbers on several meshes of the same ranks: those of each mesh are settled together.
bool stack_over_meshes(Stack& stack) {
  auto numbers = stack[0].toTensorVector();
  std::vector<DeviceMesh> meshes;
  for (auto& number : numbers) {
    if (!is_dtensor(number) || number.dim() != 0) return false;
    auto& mesh = mesh_of(number);
    if (mesh.group_count() != 1 || mesh.slots().empty()) return false;
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  }
  if (meshes.size() < 2) return false;
  CauseScope cause("aten::stack", true);
  Shards results;
  auto total = static_cast<int64_t>(numbers.size());
  auto type = at::result_type(numbers[0], numbers[1]);
  for (auto& mesh : meshes) {
    if (mesh.slots().size() != meshes[0].slots().size()) return false;
    std::vector<at::Tensor> here;
    std::vector<int64_t> places;
    for (int64_t i = 0; i < total; ++i) {
      if (mesh_of(numbers[i]) == mesh) here.push_back(numbers[i]), places.push_back(i);
    }
    auto values = shards_in(at::stack(here), Layout::replicated(mesh));
    for (size_t slot = 0; slot < values.size(); ++slot) {
      if (results.size() <= slot) results.push_back(at::empty({total}, values[slot].options().dtype(type)));
      results[slot].index_copy_(0, at::tensor(places, at::kLong), values[slot].to(type));
    }
  }
  auto dim = stack[1].toInt();
  if (dim != 0 && dim != -1) return false;
  std::vector<int64_t> sizes = {total};
  stack = {wrap(std::move(results), Layout::replicated(meshes[0]), sizes, c10::contiguous_strides(sizes),
                c10::scalarTypeToTypeMeta(type))};
  return true;
}

}  // namespace

void add_total_norm_ops(RuleTable& t) {
  t.decompose("aten::stack", stack_over_meshes);
  t.decompose("aten::norm.Scalar", [](Stack& stack) {
    if (total_norm(stack, stack[1], std::nullopt)) return true;
    stack = {at::linalg_vector_norm(stack[0].toTensor(), ord_of(stack[1]))};
    return true;
  });
  t.decompose("aten::norm.ScalarOpt_dtype", [](Stack& stack) {
    auto dtype = dtype_of(stack[2]);
    if (total_norm(stack, stack[1], dtype)) return true;
    stack = {at::linalg_vector_norm(stack[0].toTensor(), ord_of(stack[1]), std::nullopt, false, dtype)};
    return true;
  });
}

}  // namespace intarsia
