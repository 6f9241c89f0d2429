#include "intarsia/data_parallel/two_values.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include "intarsia/data_parallel/first_use.h"
#include "intarsia/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

void resize_storage(const at::Tensor& tensor, int64_t bytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), bytes);
}

}  // namespace

ShardingAxes ShardingAxes::of(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined() && (mesh.ndim() == 1 || mesh.ndim() == 2), "[fully_shard] expects a mesh of one axis, or ",
                    "of two (copies, shards), not ", mesh.defined() ? mesh.text() : "none", ". Take a slice of it by name.");
  TORCH_CHECK_VALUE(!mesh.slots().empty(), "[fully_shard] this process takes no part in ", mesh.text(), ".");
  auto axis = mesh.ndim() - 1;
  return {mesh, axis, &Axis::of(mesh, axis), axis ? &Axis::of(mesh, 0) : nullptr};
}

TwoValues::TwoValues(std::string name, const at::Tensor& leaf, const ShardingAxes& axes, std::optional<int64_t> dim,
                     std::optional<at::ScalarType> dtype_of_whole)
    : name_(std::move(name)), leaf_(leaf), axes_(axes), dim_(dim), dtype_(leaf.scalar_type()), sizes_(leaf.sizes().vec()) {
  at::NoGradGuard no_grad;
  auto value = leaf.detach().contiguous();
  auto memory = at::empty(sizes_, value.options().dtype(dtype_of_whole.value_or(dtype_)));
  bytes_ = static_cast<int64_t>(memory.nbytes());
  whole_ = make_whole(memory.storage(), memory.sizes(), memory.strides(), memory.dtype());
  Placements placements(axes.mesh.ndim(), Replicate());
  if (dim_) placements[axes.shard_axis] = Shard(*dim_);
  Shards locals;
  for (size_t slot = 0; slot < axes.shard->slot_count(); ++slot) {
    locals.push_back(piece(value, axes.shard->position(slot)).clone(at::MemoryFormat::Contiguous));
  }
  auto body = c10::make_intrusive<DTensorBody>(std::move(locals), Layout::get(axes.mesh, placements));
  sharded_ = with_first_use_key(wrap(std::move(body), sizes_, c10::contiguous_strides(sizes_), value.dtype()));
  auto grad = leaf.grad();
  TORCH_CHECK_VALUE(!grad.defined(), "[fully_shard] \"", name_, "\" has a gradient. Call zero_grad first.");
}

at::Tensor TwoValues::piece(const at::Tensor& whole, int64_t member) const {
  if (!dim_) return whole;
  auto run = chunk_of(sizes_[*dim_], axes_.shard->size(), member);
  return whole.narrow(*dim_, run.begin, run.size());
}

std::vector<int64_t> TwoValues::local_sizes(int64_t member) const {
  auto sizes = sizes_;
  if (dim_) sizes[*dim_] = chunk_of(sizes_[*dim_], axes_.shard->size(), member).size();
  return sizes;
}

Shards TwoValues::outgoing() const {
  Shards locals;
  for (auto& local : shards_of(sharded_)) locals.push_back(local.to(whole_.scalar_type()).view(-1));
  if (dim_) return locals;
  for (auto& local : locals) local = local.narrow(0, 0, 0);  // nothing to tell
  return locals;
}

std::vector<std::vector<int64_t>> TwoValues::counts() const {
  std::vector<int64_t> counts;
  for (int64_t j = 0; j < axes_.shard->size(); ++j) counts.push_back(dim_ ? c10::multiply_integers(local_sizes(j)) : 0);
  return std::vector<std::vector<int64_t>>(axes_.shard->slot_count(), counts);
}

// Along the first dim the parts of all ranks, one behind the other, are the whole. Simulated ranks have the same whole: that of
// the first is kept.
Shards TwoValues::incoming() {
  Shards rooms;
  auto options = at::TensorOptions().dtype(whole_.dtype());
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
    if (slot == 0 && dim_ == 0) {
      resize_storage(whole_, bytes_);
      rooms.push_back(at::empty({0}, options).set_(whole_.storage(), 0, {c10::multiply_integers(sizes_)}, {1}));
    } else {
      rooms.push_back(at::empty({dim_ ? c10::multiply_integers(sizes_) : 0}, options));
    }
  }
  return rooms;
}

void TwoValues::arrived(const Shards& incoming) {
  if (dim_ == 0) return;
  at::NoGradGuard no_grad;
  resize_storage(whole_, bytes_);
  auto target = at::empty({0}, incoming[0].options()).set_(whole_.storage(), 0, whole_.sizes(), whole_.strides());
  if (!dim_) return void(target.copy_(shards_of(sharded_)[0]));
  int64_t begin = 0;
  for (int64_t j = 0; j < axes_.shard->size(); ++j) {
    auto sizes = local_sizes(j);
    auto count = c10::multiply_integers(sizes);
    piece(target, j).copy_(incoming[0].narrow(0, begin, count).view(sizes));
    begin += count;
  }
}

void TwoValues::become_whole() { leaf().set_data(whole_); }

void TwoValues::become_shards() {
  leaf().set_data(sharded_);
  resize_storage(whole_, 0);
}

// What is whole on every rank is sent to every rank.
Shards TwoValues::parts_of_gradient(at::ScalarType dtype) const {
  auto& axis = *axes_.shard;
  Shards parts;
  for (size_t slot = 0; slot < axis.slot_count(); ++slot) {
    auto grad = gradient_.defined() ? value_at(gradient_, slot).to(dtype)
                                    : at::zeros(sizes_, at::TensorOptions().dtype(dtype));
    if (dim_ == 0) {
      parts.push_back(grad.contiguous().view(-1));
      continue;
    }
    std::vector<at::Tensor> pieces;
    for (int64_t j = 0; j < axis.size(); ++j) pieces.push_back(piece(grad, j).reshape(-1));
    parts.push_back(at::cat(pieces));
  }
  return parts;
}

std::vector<std::vector<int64_t>> TwoValues::gradient_counts() const {
  std::vector<int64_t> counts;
  for (int64_t j = 0; j < axes_.shard->size(); ++j) counts.push_back(c10::multiply_integers(local_sizes(j)));
  return std::vector<std::vector<int64_t>>(axes_.shard->slot_count(), counts);
}

void TwoValues::add_gradient(const Shards& parts) {
  at::NoGradGuard no_grad;
  Shards locals;
  for (size_t slot = 0; slot < parts.size(); ++slot) {
    locals.push_back(parts[slot].to(dtype_).view(local_sizes(axes_.shard->position(slot))));
  }
  auto body = c10::make_intrusive<DTensorBody>(std::move(locals), body_of(sharded_).layout);
  auto grad = wrap(std::move(body), sizes_, sharded_.strides(), sharded_.dtype());
  auto tensor = leaf();
  tensor.grad().defined() ? tensor.mutable_grad().add_(grad) : tensor.mutable_grad() = grad;
}

void TwoValues::lend_gradient() {
  auto tensor = leaf();
  own_gradient_ = tensor.grad();
  tensor.mutable_grad() = std::move(gradient_);
  gradient_ = at::Tensor();
}

void TwoValues::take_gradient(std::optional<at::ScalarType> kept_as) {
  at::NoGradGuard no_grad;
  auto tensor = leaf();
  gradient_ = tensor.grad();
  if (kept_as && gradient_.scalar_type() != *kept_as) gradient_ = gradient_.to(*kept_as);
  tensor.mutable_grad() = std::move(own_gradient_);
  own_gradient_ = at::Tensor();
}

}  // namespace intarsia
