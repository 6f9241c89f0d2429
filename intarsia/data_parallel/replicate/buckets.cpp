#include "intarsia/data_parallel/replicate/buckets.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace intarsia {
namespace {

int64_t bytes_of_leaf(const ReplicatedParam& leaf) {
  int64_t most = 0;
  for (auto& form : leaf.locals) most = std::max(most, form.numel);
  return most * static_cast<int64_t>(leaf.options.dtype().itemsize());
}

bool go_together(const ReplicatedParam& a, const ReplicatedParam& b) {
  return a.options.dtype() == b.options.dtype() && a.options.device() == b.options.device() &&
         a.is_summed() == b.is_summed();
}

// Leaves in the order in which their gradients arrive. One bucket of each kind is open at a time.
std::vector<Bucket> deal(const std::vector<ReplicatedParam>& leaves, const std::vector<size_t>& order,
                         BucketSizes sizes) {
  struct Open {
    Bucket bucket;
    int64_t bytes = 0, limit = 0;
  };
  std::vector<Open> open;
  std::vector<Bucket> done;
  for (auto leaf : order) {
    auto fits = [&](auto& entry) { return go_together(leaves[entry.bucket.members[0]], leaves[leaf]); };
    auto entry = std::find_if(open.begin(), open.end(), fits);
    if (entry == open.end()) {
      bool first = done.empty() && open.empty();
      entry = open.insert(open.end(), Open{{}, 0, first ? sizes.first : sizes.others});
      entry->bucket.op = leaves[leaf].is_summed() ? ReduceOp::sum : ReduceOp::avg;
    }
    entry->bucket.members.push_back(leaf);
    entry->bytes += bytes_of_leaf(leaves[leaf]);
    if (entry->bytes < entry->limit) continue;
    done.push_back(std::move(entry->bucket));
    open.erase(entry);
  }
  for (auto& entry : open) done.push_back(std::move(entry.bucket));
  return done;
}

}  // namespace

BucketSizes BucketSizes::of(const ReplicateOptions& options) {
  double cap_mib = options.bucket_cap_mb, first_mib = options.first_bucket_mb;
  TORCH_CHECK_VALUE(cap_mib > 0 && first_mib > 0, "[replicate] buckets of ", cap_mib, " and ", first_mib,
                    " MiB were asked for. Sizes are above 0.");
  auto bytes = [](double mib) { return static_cast<int64_t>(std::min(mib, 1e6) * (1 << 20)); };
  return {std::min(bytes(first_mib), bytes(cap_mib)), bytes(cap_mib)};
}

Buckets::Buckets(const std::vector<ReplicatedParam>& leaves, const std::vector<size_t>& order, BucketSizes sizes)
    : leaves_(leaves), buckets_(deal(leaves, order, sizes)), places_(leaves.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<int64_t> begin(leaves[buckets_[b].members[0]].locals.size(), 0);
    auto& members = buckets_[b].members;
    buckets_[b].lent.resize(members.size());
    buckets_[b].averages.resize(members.size());
    for (size_t member = 0; member < members.size(); ++member) {
      auto leaf = members[member];
      places_[leaf] = {b, member, begin};
      buckets_[b].bytes += bytes_of_leaf(leaves[leaf]);
      for (size_t slot = 0; slot < begin.size(); ++slot) begin[slot] += leaves[leaf].locals[slot].numel;
    }
  }
}

void Buckets::make_room(Bucket& bucket) {
  auto& last = bucket.members.back();
  auto& leaf = leaves_[last];
  for (size_t slot = 0; slot < leaf.locals.size(); ++slot) {
    auto numel = places_[last].begin[slot] + leaf.locals[slot].numel;
    bucket.values.push_back(at::empty({numel}, leaf.options.requires_grad(false)));
  }
}

Shards Buckets::places_of(size_t leaf) {
  auto& place = places_[leaf];
  auto& bucket = buckets_[place.bucket];
  if (bucket.values.empty()) make_room(bucket);
  Shards views;
  for (size_t slot = 0; slot < place.begin.size(); ++slot) {
    auto& form = leaves_[leaf].locals[slot];
    views.push_back(bucket.values[slot].as_strided(form.sizes, form.strides, place.begin[slot]).variable_data());
  }
  return views;
}

void Buckets::put(size_t leaf, const Shards& terms) {
  at::NoGradGuard no_grad;
  auto places = places_of(leaf);
  for (size_t slot = 0; slot < places.size(); ++slot) {
    if (terms.empty()) {
      places[slot].zero_();
    } else if (terms[slot].const_data_ptr() != places[slot].const_data_ptr() || !places[slot].numel()) {
      places[slot].copy_(terms[slot]);
    }
  }
}

// --- gradients that are lent

at::Tensor Buckets::room_for(size_t leaf) const {
  auto& form = leaves_[leaf].locals[0];
  return at::empty_strided(form.sizes, form.strides, leaves_[leaf].options.requires_grad(false));
}

static bool lies_alike(const at::Tensor& a, const ReplicatedParam::Form& form, const at::TensorOptions& options) {
  return a.sizes() == at::IntArrayRef(form.sizes) && a.strides() == at::IntArrayRef(form.strides) &&
         a.dtype() == options.dtype();
}

void Buckets::lend(size_t leaf, const at::Tensor& grad) {
  auto& lent = buckets_[places_[leaf].bucket].lent[places_[leaf].member];
  if (grad.defined() && lies_alike(grad, leaves_[leaf].locals[0], leaves_[leaf].options)) {
    lent = grad.variable_data();
    return;
  }
  lent = room_for(leaf);
  grad.defined() ? lent.copy_(grad) : lent.zero_();
}

std::pair<ShardsList, ShardsList> Buckets::on_loan(Bucket& bucket) {
  ShardsList from, to;
  auto flat = [](const at::Tensor& t) { return Shards{t.as_strided({t.numel()}, {1}, t.storage_offset())}; };
  for (size_t member = 0; member < bucket.members.size(); ++member) {
    auto& average = bucket.averages[member];
    if (!average.defined()) average = room_for(bucket.members[member]);
    from.push_back(flat(bucket.lent[member]));
    to.push_back(flat(average));
  }
  return {std::move(from), std::move(to)};
}

void Buckets::hand_over(size_t leaf, at::Tensor& grad, double scale) {
  auto& bucket = buckets_[places_[leaf].bucket];
  auto& average = bucket.averages[places_[leaf].member];
  bucket.lent[places_[leaf].member].reset();
  if (scale != 1) average.mul_(scale);
  // Something else holds it, or it existed before to(dtype) and keeps its dtype.
  if (grad.defined() && (grad.use_count() > 1 || grad.scalar_type() != average.scalar_type())) {
    grad.copy_(average);
    return;
  }
  bool ours = grad.defined() && grad.storage().use_count() == 1 &&
              lies_alike(grad, leaves_[leaf].locals[0], leaves_[leaf].options);
  std::swap(grad, average);
  if (!ours) average.reset();
}

}  // namespace intarsia
