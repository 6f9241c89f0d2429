#include "intarsia/tensor/strides.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/core/twins.h"

namespace intarsia {

void follow_strides(at::Tensor& shard, at::IntArrayRef strides) {
  if (!shard.defined() || shard.layout() != at::kStrided || shard.numel() < 2) return;
  for (int64_t d = 0; d < shard.dim(); ++d) {
    if (strides[d] != 0 || shard.size(d) < 2) continue;
    auto one = shard.narrow(d, 0, 1);  // of values that are all equal
    follow_strides(one, strides);
    shard = one.expand(shard.sizes());
    return;
  }
  auto wanted = at::infer_dense_strides(shard.sizes(), strides);
  bool follows = true;
  for (int64_t d = 0; d < shard.dim(); ++d) follows = follows && (shard.size(d) == 1 || shard.stride(d) == wanted[d]);
  if (!follows) shard = at::empty_strided(shard.sizes(), wanted, shard.options()).copy_(shard);
}

void follow_strides(Shards& shards, at::IntArrayRef strides, bool contiguous) {
  if (shards.size() == 1) return follow_strides(shards[0], strides, contiguous);
  bool follow = contiguous && std::all_of(shards.begin(), shards.end(), [](auto& s) { return !s.defined() || s.is_contiguous(); });
  if (follow) return;
  shards = made_once(shards, [&](auto shard) {
    follow_strides(shard, strides);
    return shard;
  });
}

}  // namespace intarsia
