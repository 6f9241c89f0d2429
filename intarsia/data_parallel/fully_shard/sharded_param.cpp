#include "intarsia/data_parallel/fully_shard/sharded_param.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include "intarsia/comm/call_log.h"
#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"
#include "intarsia/libtorch/dispatch_keys.h"
#include "intarsia/libtorch/variable_hooks.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "intarsia/tensor/body.h"
#include "intarsia/tensor/rehearsal.h"

namespace intarsia {
namespace {

void resize_storage(const at::Tensor& tensor, int64_t bytes) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (static_cast<int64_t>(storage->nbytes()) == bytes) return;
  if (!tensor.is_meta()) return at::native::resize_bytes_cpu(storage, bytes);
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));  // explain counts it
  storage->set_nbytes(bytes);
}

// A write to the leaf makes what autograd has saved of the whole out of date.
void share_version_counter(const at::Tensor& whole, const at::Tensor& leaf) {
  namespace impl = torch::autograd::impl;
  if (!leaf.is_inference()) impl::set_version_counter(whole, impl::version_counter(leaf));
}

}  // namespace

ShardedParam::ShardedParam(std::string name, const at::Tensor& leaf, const ShardingAxes& axes,
                           std::optional<int64_t> dim, std::optional<at::ScalarType> dtype_of_whole)
    : name_(std::move(name)),
      leaf_(leaf),
      axes_(axes),
      dim_(dim),
      dtype_(leaf.scalar_type()),
      whole_follows_dtype_(!dtype_of_whole),
      sizes_(leaf.sizes().vec()),
      gradient_(leaf) {
  TORCH_CHECK_VALUE(!leaf.grad().defined(), "[fully_shard] \"", name_, "\" has a gradient. Call zero_grad first.");
  at::NoGradGuard no_grad;
  make_values(leaf, c10::scalarTypeToTypeMeta(dtype_of_whole.value_or(dtype_)));
  gradient_.set_layouts(pending_layout(), rest_.copies.empty() ? nullptr : pending_over_copies());
  body_of(sharded_).origin =
      calls_on(rest_.shards->mesh()).add_new("fully_shard", rest_.shards, hash_of_form(*rest_.shards, sizes_));
  share_version_counter(whole_, leaf);
}

void ShardedParam::take_shards(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole) {
  auto strides = c10::contiguous_strides(sizes_);
  memories_sizes_.push_back(sizes_);
  memories_.push_back(at::empty(sizes_, leaf.options().dtype(dtype_of_whole)));
  whole_ = make_whole(memories_[0].storage(), sizes_, strides, dtype_of_whole);
  sharded_ = with_first_use_key(wrap(shards_in(leaf, rest_.shards), rest_.shards, sizes_, strides, leaf.dtype()));
}

void ShardedParam::make_values(const at::Tensor& leaf, caffe2::TypeMeta dtype_of_whole) {
  rest_ = layouts_of_param(name_, axes_, leaf, dim_);
  if (is_dtensor(leaf) && !rest_.whole) return take_shards(leaf, dtype_of_whole);
  Shards values = rest_.whole ? shards_in(leaf, rest_.whole) : Shards{value_at(leaf, 0).detach()};
  Shards locals;
  auto slots = axes_.shard->slot_count();
  for (auto& value : values) memories_sizes_.push_back(value.sizes().vec());
  for (size_t slot = 0; slot < slots; ++slot) {
    auto& value = values[values.size() == 1 ? 0 : slot];
    locals.push_back(piece(value, axes_.shard->position(slot)).clone(at::MemoryFormat::Contiguous));
  }
  for (auto& value : values) memories_.push_back(at::empty(value.sizes(), value.options().dtype(dtype_of_whole)));
  auto strides = c10::contiguous_strides(sizes_);
  auto sharded = wrap(c10::make_intrusive<DTensorBody>(std::move(locals), rest_.shards), sizes_, strides, leaf.dtype());
  if (!rest_.whole) {
    whole_ = make_whole(memories_[0].storage(), sizes_, strides, dtype_of_whole);
  } else {
    Shards wholes(memories_.begin(), memories_.end());
    auto whole =
        wrap(c10::make_intrusive<DTensorBody>(std::move(wholes), rest_.whole), sizes_, strides, dtype_of_whole);
    if (body_of(leaf).note) attach_note(whole, body_of(leaf).note), attach_note(sharded, body_of(leaf).note);
    whole_ = with_first_use_key(whole);
  }
  sharded_ = with_first_use_key(sharded);
}

int64_t ShardedParam::bytes_of_whole() const {
  return c10::multiply_integers(memories_sizes_[0]) * static_cast<int64_t>(memories_[0].element_size());
}

at::Tensor ShardedParam::place_in(size_t memory) const {
  auto& sizes = memories_sizes_[memory];
  auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(memories_[memory].element_size());
  resize_storage(memories_[memory], bytes);
  return memories_[memory];
}

at::Tensor ShardedParam::piece(const at::Tensor& whole, int64_t member) const {
  if (!dim_) return whole;
  auto run = chunk_of(whole.size(*dim_), axes_.shard->size(), member);
  return whole.narrow(*dim_, run.begin, run.size());
}

std::vector<int64_t> ShardedParam::local_sizes(size_t slot, int64_t member) const {
  auto sizes = whole_sizes(slot);
  if (dim_) sizes[*dim_] = chunk_of(sizes[*dim_], axes_.shard->size(), member).size();
  return sizes;
}

Shards ShardedParam::outgoing() const {
  Shards locals;
  for (auto& local : shards_of(sharded_)) locals.push_back(local.to(whole_.scalar_type()).view(-1));
  if (dim_) return locals;
  for (auto& local : locals) local = local.narrow(0, 0, 0);  // no values are needed
  return locals;
}

Counts ShardedParam::counts() const {
  auto counts = gradient_counts();
  if (dim_) return counts;
  for (auto& row : counts) std::fill(row.begin(), row.end(), 0);
  return counts;
}

// Along the first dim the parts of all ranks, one after the other, are the whole. Simulated ranks may share one whole:
// that of the first is kept.
Shards ShardedParam::incoming() {
  Shards rooms;
  for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
    if (slot < memories_.size() && dim_ == 0) {
      rooms.push_back(place_in(slot).view(-1));
    } else {
      rooms.push_back(at::empty({dim_ ? c10::multiply_integers(whole_sizes(slot)) : 0}, memories_[0].options()));
    }
  }
  return rooms;
}

void ShardedParam::arrived(const Shards& incoming) {
  if (dim_ == 0) return;
  at::NoGradGuard no_grad;
  for (size_t slot = 0; slot < memories_.size(); ++slot) {
    auto target = place_in(slot);
    if (!dim_) {
      target.copy_(shards_of(sharded_)[slot]);
      continue;
    }
    int64_t begin = 0;
    for (int64_t j = 0; j < axes_.shard->size(); ++j) {
      auto sizes = local_sizes(slot, j);
      auto count = c10::multiply_integers(sizes);
      piece(target, j).copy_(incoming[slot].narrow(0, begin, count).view(sizes));
      begin += count;
    }
  }
}

uint64_t ShardedParam::version() const { return body_of(sharded_).version(); }

// torch::zeros_like and the like arrive here with autograd's keys excluded, but below those set_data does not know our
// tensors.
static void set_value(const at::Tensor& leaf, const at::Tensor& value) {
  if (is_rehearsing())
    return leaf.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());  // set_data refuses meta
  auto local = c10::impl::tls_local_dispatch_key_set();
  auto excluded = local.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  c10::impl::ForceDispatchKeyGuard guard(local.included_, excluded);
  set_data_of_libtorch(leaf, value);
}

// set_data drops the node of a leaf that changes its dtype, but a graph may still have it.
void ShardedParam::show(const at::Tensor& value) {
  auto tensor = leaf();
  auto node = accumulator();
  set_value(tensor, value);
  if (node) remember_accumulator(tensor, node);
}

void ShardedParam::show_whole() { show(whole_); }
void ShardedParam::show_shards() { show(sharded_); }
void ShardedParam::free_whole() {
  for (auto& memory : memories_) resize_storage(memory, 0);
}

bool ShardedParam::can_write_whole() const {
  return !is_dtensor(whole_) && !is_per_rank(whole_) && whole_.scalar_type() == dtype_;
}

void ShardedParam::take_written_whole() {
  at::NoGradGuard no_grad;
  auto& shards = shards_of(sharded_);
  for (size_t slot = 0; slot < shards.size(); ++slot) {
    shards[slot].copy_(piece(memories_[0], axes_.shard->position(slot)));
  }
  body_of(sharded_).written();
  leaf().unsafeGetTensorImpl()->bump_version();
}

// --- what ops get

bool ShardedParam::is_handle_of_shards(const at::Tensor& tensor) const {
  if (!is_dtensor(tensor) || &layout_of(tensor) != &layout_of(sharded_) || tensor.sizes() != sharded_.sizes())
    return false;
  auto &own = body_of(sharded_).last_known_shards()[0], &other = body_of(tensor).last_known_shards()[0];
  bool same_form = other.sizes() == own.sizes() && other.strides() == own.strides();
  return same_form && other.storage_offset() == own.storage_offset();
}

bool ShardedParam::is_handle_of_whole(const at::Tensor& tensor) const {
  bool same_kind = is_dtensor(tensor) == is_dtensor(whole_) && tensor.scalar_type() == whole_.scalar_type();
  if (!same_kind || tensor.sizes() != whole_.sizes() || tensor.strides() != whole_.strides()) return false;
  if (is_dtensor(tensor)) return &layout_of(tensor) == &layout_of(whole_);
  return is_per_rank(tensor) || tensor.storage_offset() == 0;
}

NodePtr ShardedParam::accumulator() const {
  auto node = accumulator_.lock();
  return node ? node : torch::autograd::impl::try_get_grad_accumulator(leaf());
}

void ShardedParam::remember_accumulator(const at::Tensor& holder, const NodePtr& node) {
  accumulator_ = c10::weak_intrusive_ptr<torch::autograd::Node>(node);
  torch::autograd::impl::set_grad_accumulator(holder, accumulator_);
}

StandIn ShardedParam::stand_in(bool for_leaf) {
  if (c10::InferenceMode::is_enabled()) return {whole_, nullptr};  // nothing is recorded, and no handle can be made
  if (!for_leaf) return {whole_.variable_data(), nullptr};
  auto tensor = leaf();
  bool requires_grad = tensor.requires_grad();
  if (whole_.requires_grad() != requires_grad) whole_.set_requires_grad(requires_grad);
  if (!requires_grad || !at::GradMode::is_enabled()) return {whole_, nullptr};
  auto node = accumulator();
  if (!node) node = torch::autograd::impl::grad_accumulator(tensor);
  node->mutable_input_metadata(0).set_grad_dtype(whole_.scalar_type());  // gradients arrive in the dtype of the whole
  remember_accumulator(tensor, node);
  remember_accumulator(whole_, node);
  return {whole_, node};
}

// If dtype or device change, the memory of the whole is allocated anew: what autograd has saved of the old one is no
// longer valid.
void ShardedParam::take_form_of(const at::Tensor& local) {
  dtype_ = local.scalar_type();
  auto meta = whole_follows_dtype_ ? local.dtype() : whole_.dtype();
  if (whole_.dtype() == meta && memories_[0].device() == local.device()) return;
  for (size_t m = 0; m < memories_.size(); ++m)
    memories_[m] = at::empty(memories_sizes_[m], local.options().dtype(meta));
  accumulator_ = c10::weak_intrusive_ptr<torch::autograd::Node>(NodePtr());
  if (!is_dtensor(whole_)) {
    whole_ = make_whole(memories_[0].storage(), sizes_, whole_.strides(), meta);
    return share_version_counter(whole_, leaf());
  }
  auto note = body_of(whole_).note;
  auto body = c10::make_intrusive<DTensorBody>(Shards(memories_.begin(), memories_.end()), &layout_of(whole_));
  auto whole = wrap(std::move(body), sizes_, whole_.strides(), meta);
  if (note) attach_note(whole, note);
  whole_ = with_first_use_key(whole);
  share_version_counter(whole_, leaf());
}

void ShardedParam::replace(const at::Tensor& value) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard as_it_is(kFirstUseKey);  // results of a parameter are marked, but shards are not
  bool as_whole =
      is_dtensor(value) == is_dtensor(whole_) && (!is_dtensor(value) || &layout_of(value) == &layout_of(whole_));
  bool as_shards = is_dtensor(value) && mesh_of(value) == mesh_of(sharded_);
  TORCH_CHECK_VALUE(value.sizes() == at::IntArrayRef(sizes_) && (as_whole || as_shards), "[fully_shard] \"", name_,
                    "\" of shape ", at::IntArrayRef(sizes_), " is given data of shape ", value.sizes(),
                    is_dtensor(value) ? " as " + str(layout_of(value)) : "",
                    ". Give a whole value, or one laid out as ", str(layout_of(sharded_)), ".");
  Shards locals;
  if (as_shards) {
    for (auto& shard : shards_in(value, &layout_of(sharded_))) locals.push_back(shard.contiguous());
  } else {
    for (size_t slot = 0; slot < axes_.shard->slot_count(); ++slot) {
      auto whole = is_dtensor(value) ? shards_of(value)[slot] : value_at(value, slot);
      locals.push_back(piece(whole, axes_.shard->position(slot)).clone(at::MemoryFormat::Contiguous));
    }
  }
  auto note = body_of(sharded_).note;
  auto first = locals[0];
  auto body = c10::make_intrusive<DTensorBody>(std::move(locals), &layout_of(sharded_));
  auto sharded = wrap(std::move(body), sizes_, sharded_.strides(), value.dtype());
  if (note) attach_note(sharded, note);
  sharded_ = with_first_use_key(sharded);
  take_form_of(first);
  leaf().unsafeGetTensorImpl()->bump_version();
  show_shards();
  free_whole();
}

}  // namespace intarsia
