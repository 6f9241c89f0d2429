#include "intarsia/tensor/strides.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

namespace intarsia {

void follow_strides(at::Tensor& shard, at::IntArrayRef strides) {
  if (!shard.defined() || shard.layout() != at::kStrided || shard.numel() < 2) return;
  auto wanted = at::infer_dense_strides(shard.sizes(), strides);
  bool follows = true;
  for (int64_t d = 0; d < shard.dim(); ++d) follows = follows && (shard.size(d) == 1 || shard.stride(d) == wanted[d]);
  if (!follows) shard = at::empty_strided(shard.sizes(), wanted, shard.options()).copy_(shard);
}

}  // namespace intarsia
