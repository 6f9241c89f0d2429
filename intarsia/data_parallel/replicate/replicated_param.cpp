#include "intarsia/data_parallel/replicate/replicated_param.h"

#include <ATen/ATen.h>

#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

// The axis of `mesh` whose lines are those of `line`, a mesh of one axis; -1 if there is none.
int64_t axis_along(const DeviceMesh& mesh, const DeviceMesh& line) {
  if (line.size() == 1) return -1;  // nothing is pending along it
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool same = mesh.slots().size() == line.slots().size();
    for (size_t s = 0; same && s < mesh.slots().size(); ++s) {
      same = mesh.line(mesh.slots()[s], {axis}) == line.line(line.slots()[s], {0});
    }
    if (same) return axis;
  }
  return -1;
}

void check_same_ranks(const std::string& name, const DeviceMesh& own, const DeviceMesh& mesh) {
  auto &a = own.slots(), &b = mesh.slots();
  bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto& x, auto& y) { return x.rank == y.rank; });
  TORCH_CHECK_VALUE(same, "[replicate] \"", name, "\" lies on ", own.text(), ", which has other ranks than ",
                    mesh.text(), ". Both must be slices of one mesh.");
}

}  // namespace

int64_t ReplicatedParam::check_layout(const std::string& name, const at::Tensor& given, const DeviceMesh& mesh) {
  auto& layout = layout_of(given);
  check_same_ranks(name, layout.mesh(), mesh);
  auto axis = axis_along(layout.mesh(), mesh);
  TORCH_CHECK_VALUE(axis < 0 || is_replicate(layout.placements()[axis]), "[replicate] \"", name, "\" is ",
                    str(layout.placements()), ": it is cut along the axis that it is to be replicated on. ",
                    "Leave it out with ignored_parameters, parallelize it over another axis of the mesh, such as ",
                    "mesh[\"tp\"], or use fully_shard.");
  return axis;
}

ReplicatedParam::ReplicatedParam(std::string given_name, const at::Tensor& given, const DeviceMesh& mesh)
    : name(std::move(given_name)), tensor(given), options(given.options()) {
  if (is_dtensor(given)) {
    layout = &layout_of(given);
    sizes = given.sizes().vec(), strides = given.strides().vec();
    axis = check_layout(name, given, mesh);
  }
  for (auto& local : local_tensors(given)) {
    auto contiguous = c10::contiguous_strides(local.sizes());
    auto local_strides = local.is_non_overlapping_and_dense() ? local.strides() : at::IntArrayRef(contiguous);
    locals.push_back({local.sizes().vec(), local_strides.vec(), local.numel()});
    options = options.device(local.device());
  }
  if (layout || locals.size() == mesh.slots().size()) return;
  locals.resize(mesh.slots().size(), locals[0]);
}

bool ReplicatedParam::Form::is_of(const at::Tensor& local) const {
  if (local.sizes() != at::IntArrayRef(sizes)) return false;
  if (local.is_non_overlapping_and_dense()) return local.strides() == at::IntArrayRef(strides);
  return at::IntArrayRef(c10::contiguous_strides(local.sizes())) == at::IntArrayRef(strides);
}

bool ReplicatedParam::fits(const at::Tensor& now) const {
  if (now.scalar_type() != c10::typeMetaToScalarType(options.dtype())) return false;
  if (layout) {
    return is_dtensor(now) && &layout_of(now) == layout && now.sizes() == at::IntArrayRef(sizes) &&
           now.strides() == at::IntArrayRef(strides);
  }
  if (is_dtensor(now)) return false;
  if (!is_per_rank(now)) return now.device() == options.device() && locals[0].is_of(now);
  auto& values = values_of(now);
  for (size_t slot = 0; slot < locals.size(); ++slot) {
    if (!locals[slot].is_of(values[slot])) return false;
  }
  return true;
}

Shards ReplicatedParam::local_tensors(const at::Tensor& tensor) const {
  if (is_dtensor(tensor)) return shards_of(tensor);
  if (is_per_rank(tensor)) return values_of(tensor);
  return {tensor.detach()};
}

Shards ReplicatedParam::terms(const at::Tensor& grad, const Axis& over) const {
  TORCH_CHECK_NOT_IMPLEMENTED(!grad.is_sparse(), "[replicate] the gradient of \"", name,
                              "\" is sparse. Use sparse(false).");
  if (!layout) {
    Shards values;
    for (size_t slot = 0; slot < over.slot_count(); ++slot) values.push_back(value_at(grad, slot));
    return values;
  }
  TORCH_CHECK_TYPE(is_dtensor(grad), "[replicate] the gradient of \"", name, "\" is a plain tensor, the parameter is ",
                   str(*layout), ". Give a distributed gradient.");
  auto placements = settled(layout->placements());
  bool pending = is_summed() && placements_of(grad)[axis] == Placement(Partial(ReduceOp::sum));
  if (pending) placements[axis] = Partial();
  auto shards = shards_in(grad, layout->with(placements));
  for (size_t slot = 0; is_summed() && !pending && slot < shards.size(); ++slot) {
    if (over.position(slot) != 0)
      shards[slot] = at::zeros_like(shards[slot]);  // the value is there already: add it once
  }
  return shards;
}

at::Tensor ReplicatedParam::gradient(Shards locals, const DeviceMesh& mesh) const {
  if (!layout) {
    // The simulated ranks of one line have the same average; those of several may.
    auto is_first = [&](auto& local) { return at::equal(local, locals[0]); };
    bool one = mesh.group_count() == 1 || std::all_of(locals.begin() + 1, locals.end(), is_first);
    return one && !is_rehearsing() ? locals[0] : per_rank(std::move(locals));
  }
  auto whole = tensor.lock();
  auto body = c10::make_intrusive<DTensorBody>(std::move(locals), layout);
  return wrap(std::move(body), whole.sizes(), whole.strides(), whole.dtype());
}

}  // namespace intarsia
