#include "intarsia/tensor/strides.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "intarsia/simulation/twins/twins.h"

namespace intarsia {
namespace {

// The dims from the innermost to the outermost; those of one element, whose strides do not matter, as in a contiguous
// tensor.
std::vector<int64_t> inside_out(at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto dense = at::infer_dense_strides(sizes, strides);
  std::vector<int64_t> dims(sizes.size());
  std::iota(dims.rbegin(), dims.rend(), 0);
  std::stable_sort(dims.begin(), dims.end(), [&](auto a, auto b) { return dense[a] < dense[b]; });
  return dims;
}

bool is_expanded(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t dim) {
  return strides[dim] == 0 && sizes[dim] > 1;
}

// Whether a shard's dims are in the order of the strides of a whole of `sizes`, expanded where it is expanded and dense
// where it is dense.
bool lies_as(const at::Tensor& shard, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (shard.numel() < 2) return true;
  int64_t inner = 0, whole_end = 1, end = 1;  // where the dims so far end, in the whole and in the shard
  bool dense = true;
  for (auto d : inside_out(sizes, strides)) {
    if (sizes[d] == 1) continue;
    if (is_expanded(sizes, strides, d) || is_expanded(shard.sizes(), shard.strides(), d)) {
      if (shard.size(d) > 1 && (strides[d] != 0 || shard.stride(d) != 0)) return false;
      continue;
    }
    dense = dense && strides[d] == whole_end;
    whole_end = strides[d] * sizes[d];
    if (shard.size(d) == 1) continue;
    if (shard.stride(d) < inner || (dense && shard.stride(d) != end)) return false;
    inner = shard.stride(d);
    end = shard.stride(d) * shard.size(d);
  }
  return true;
}

// Whether a shard has several values along a dim that the strides expand.
bool has_more(const at::Tensor& shard, at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (int64_t d = 0; d < shard.dim(); ++d) {
    if (is_expanded(sizes, strides, d) && shard.size(d) > 1 && shard.stride(d) != 0) return true;
  }
  return false;
}

}  // namespace

void fit_strides(Shards& shards, at::IntArrayRef sizes, std::vector<int64_t>& strides) {
  auto lies = [&](const at::Tensor& shard) { return lies_as(shard, sizes, strides); };
  if (std::all_of(shards.begin(), shards.end(), lies)) return;
  bool more = std::any_of(shards.begin(), shards.end(), [&](auto& shard) { return has_more(shard, sizes, strides); });
  if (more) strides = at::infer_dense_strides(sizes, strides);
  shards = made_once(shards, [&](auto shard) {
    if (!lies(shard)) follow_strides(shard, strides);
    return shard;
  });
}

std::vector<int64_t> strides_around(const at::Tensor& shard, at::IntArrayRef sizes) {
  if (shard.numel() == 0 || shard.is_non_overlapping_and_dense())
    return at::infer_dense_strides(sizes, shard.strides());
  int64_t end = 1, whole_end = 1;  // where the dims so far end, in the shard and in the whole
  std::vector<int64_t> result(sizes.size());
  for (auto d : inside_out(shard.sizes(), shard.strides())) {
    if (is_expanded(shard.sizes(), shard.strides(), d)) continue;
    bool counts = shard.size(d) > 1;
    if (counts && shard.stride(d) < end) {
      auto contiguous = c10::contiguous_strides(sizes);
      return {contiguous.begin(), contiguous.end()};
    }
    if (counts && shard.stride(d) > end) whole_end *= 2;  // a gap, whatever its size
    result[d] = whole_end;
    whole_end *= std::max<int64_t>(sizes[d], 1);
    if (counts) end = shard.stride(d) * shard.size(d);
  }
  return result;
}

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
  bool follow = contiguous &&
                std::all_of(shards.begin(), shards.end(), [](auto& s) { return !s.defined() || s.is_contiguous(); });
  if (follow) return;
  shards = made_once(shards, [&](auto shard) {
    follow_strides(shard, strides);
    return shard;
  });
}

}  // namespace intarsia
