// Norms of whole tensors that are cut. clip_grad_norm_ asks for the norm of one gradient after the other and only then
// looks at them: so a norm waits until somebody reads it, and all that wait on a mesh are summed in one all-reduce.

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>

#include <ATen/ATen.h>

#include "intarsia/comm/axis.h"
#include "intarsia/comm/trace.h"
#include "intarsia/ops/along/layouts.h"
#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

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
    CauseScope cause("aten::norm", true);  // it runs when a norm is read, long after the op
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
  auto& shards = body_of(self).shards();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!counts(layout_of(self), slots[slot])) {
      sums.push_back(at::zeros({}, shards[slot].options().dtype(at::kDouble)));
      continue;
    }
    auto norm = at::linalg_vector_norm(shards[slot].to(type), ord, std::nullopt, false, sum_type(type)).to(at::kDouble);
    sums.push_back(ord == 1 ? norm : at::pow(norm, ord));
  }
  return sums;
}

// A number on every rank that is added up when it is first read.
at::Tensor waiting_norm(const at::Tensor& self, double ord, at::ScalarType type) {
  auto& mesh = mesh_of(self);
  auto batch = waiting_on(mesh);
  auto place = batch->add(sums_of_powers(self, ord, type));
  auto body = c10::make_intrusive<DTensorBody>(Shards(), Layout::replicated(mesh));
  auto result = wrap(body, {}, {}, c10::scalarTypeToTypeMeta(type));
  body->arrive_later([batch, place, ord, type] {
    auto norms = batch->total(place);
    for (auto& norm : norms) norm = at::pow(norm, 1 / ord).to(type);
    return norms;
  });
  return result;
}

// norm(self, ord), norm(self, ord, dtype): what is no sum of powers, by its order or by how it lies, is a vector's norm.
Way total_norm(const CutCall& c) {
  auto& self = c.input(0);
  auto dtype = c.call.arg_index("dtype") < 0 ? std::nullopt : dtype_of(c.call.arg("dtype"));
  auto type = dtype.value_or(self.dtype);
  bool cut = c.cuts(0, wrapped_dims({}, self.dim())) && !c.has_partial(0);
  bool sums = cut && self.numel() > 0 && at::isFloatingType(type);
  return [=](Stack& stack) {
    auto self = stack[0].toTensor();
    auto given = ord_of(stack[1]);
    auto ord = given.toDouble();
    bool waits = sums && ord > 0 && std::isfinite(ord);
    stack = {waits ? waiting_norm(self, ord, type) : at::linalg_vector_norm(self, given, std::nullopt, false, dtype)};
  };
}

// The numbers, which lie on several meshes, in one tensor on the first one. Those of each mesh are settled together.
at::Tensor stacked(const std::vector<at::Tensor>& numbers, const std::vector<DeviceMesh>& meshes) {
  Shards results;
  auto total = static_cast<int64_t>(numbers.size());
  auto type = at::result_type(numbers[0], numbers[1]);
  for (auto& mesh : meshes) {
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
  std::vector<int64_t> sizes = {total};
  return wrap(std::move(results), Layout::replicated(meshes[0]), sizes, c10::contiguous_strides(sizes),
              c10::scalarTypeToTypeMeta(type));
}

// stack(numbers, dim) of norms on several meshes of the same ranks.
Way stack_over_meshes(const CutCall& c) {
  std::vector<DeviceMesh> meshes;
  for (size_t i = 0; i < c.now.size(); ++i) {
    if (!c.is_distributed(i) || c.input(i).dim() != 0) return {};
    auto& mesh = c.now[i]->mesh();
    if (mesh.group_count() != 1 || mesh.slots().empty()) return {};
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
  }
  auto dim = c.call.int_arg("dim", 0);
  if (meshes.size() < 2 || (dim != 0 && dim != -1)) return {};
  for (auto& mesh : meshes) {
    if (mesh.slots().size() != meshes[0].slots().size()) return {};
  }
  return [meshes](Stack& stack) { stack = {stacked(stack[0].toTensorVector(), meshes)}; };
}

}  // namespace

void add_total_norms(RuleTable& t) {
  t.along("aten::norm.Scalar", total_norm);
  t.along("aten::norm.ScalarOpt_dtype", total_norm);
  t.along("aten::stack", stack_over_meshes);
}

}  // namespace intarsia
