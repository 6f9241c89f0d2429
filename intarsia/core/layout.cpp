#include "intarsia/core/layout.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

namespace intarsia {
namespace {

struct Key {
  DeviceMesh mesh;
  Placements placements;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    auto hash = key.mesh.hash();
    for (auto& p : key.placements) hash = c10::hash_combine(hash, hash_value(p));
    return hash;
  }
};

}  // namespace

Layout::Layout(const DeviceMesh& mesh, const Placements& placements) : mesh_(mesh), placements_(placements) {
  for (auto& p : placements) {
    replicated_ = replicated_ && is_replicate(p);
    partial_ = partial_ || is_partial(p);
  }
}

const Layout* Layout::get(const DeviceMesh& mesh, const Placements& placements) {
  static auto* mutex = new std::mutex;
  static auto* layouts = new std::unordered_map<Key, std::unique_ptr<const Layout>, KeyHash>;
  TORCH_INTERNAL_ASSERT(static_cast<int64_t>(placements.size()) == mesh.ndim());
  std::lock_guard lock(*mutex);
  auto& entry = (*layouts)[Key{mesh, placements}];
  if (!entry) entry.reset(new Layout(mesh, placements));
  return entry.get();
}

const Layout* Layout::replicated(const DeviceMesh& mesh) { return get(mesh, Placements(mesh.ndim(), Replicate())); }

std::string str(const Layout& layout) { return str(layout.placements()) + " on " + layout.mesh().text(); }

Interval chunk_of(int64_t size, int64_t parts, int64_t index) {
  auto step = (size + parts - 1) / parts;
  auto begin = std::min(size, step * index);
  return {begin, std::min(size, begin + step)};
}

int64_t extent_of(const Intervals& intervals) {
  int64_t sum = 0;
  for (auto& piece : intervals) sum += piece.size();
  return sum;
}

// Note [Strided shards]
// StridedShard(d, b) takes part `index` of each of b blocks. It arises where the inner of two nested shardings is
// gathered first ([S(0), S(0)] -> [R, SS(0, 2)]), where a sharded inner dim is flattened ([4, S(1) of 6] viewed as [24]
// is SS(0, 4)), and where FSDP shards what tensor parallelism has sharded. Blocks and parts are both split as
// torch.chunk splits, so uneven extents have one meaning everywhere.
Intervals cut_once(const Intervals& held, const Placement& placement, int64_t parts, int64_t index) {
  Intervals result;
  auto extent = extent_of(held);
  // At most `extent` blocks are not empty, so a larger number of blocks gives the same result as `extent` blocks.
  auto blocks = std::min(cut_blocks(placement), std::max<int64_t>(extent, 1));
  auto piece = held.begin();
  int64_t passed = 0;                                // positions before *piece
  auto length = chunk_of(extent, blocks, 0).size();  // of a block; the last ones may be shorter or empty
  auto usual = chunk_of(length, parts, index);
  for (int64_t first = 0; first < extent; first += length) {
    auto part = first + length <= extent ? usual : chunk_of(extent - first, parts, index);
    for (auto at = first + part.begin, end = first + part.end; at < end;) {
      while (passed + piece->size() <= at) passed += (piece++)->size();
      auto last = std::min(end, passed + piece->size());
      auto begin = piece->begin + at - passed;
      if (result.empty() || result.back().end != begin) result.push_back({begin, begin});
      result.back().end = piece->begin + last - passed;
      at = last;
    }
  }
  return result;
}

Intervals intervals_of(const Layout& layout, int64_t dim, int64_t size, c10::ArrayRef<int64_t> coordinate) {
  Intervals held;
  if (size > 0) held.push_back({0, size});
  for (size_t axis = 0; axis < layout.placements().size(); ++axis) {
    auto& placement = layout.placements()[axis];
    if (cut_dim(placement) != dim) continue;
    held = cut_once(held, placement, layout.mesh().shape()[axis], coordinate[axis]);
  }
  return held;
}

c10::SmallVector<int64_t, 5> with_size(c10::ArrayRef<int64_t> shape, int64_t dim, int64_t size) {
  c10::SmallVector<int64_t, 5> result(shape.begin(), shape.end());
  result[dim] = size;
  return result;
}

c10::SmallVector<int64_t, 5> local_shape(const Layout& layout, c10::ArrayRef<int64_t> shape,
                                         c10::ArrayRef<int64_t> coordinate) {
  c10::SmallVector<int64_t, 5> result(shape.begin(), shape.end());
  for (auto& p : layout.placements()) {
    auto dim = cut_dim(p);
    if (dim >= 0) result[dim] = extent_of(intervals_of(layout, dim, shape[dim], coordinate));
  }
  return result;
}

c10::SmallVector<int64_t, 5> local_offset(const Layout& layout, c10::ArrayRef<int64_t> shape,
                                          c10::ArrayRef<int64_t> coordinate) {
  c10::SmallVector<int64_t, 5> result(shape.size(), 0);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    auto held = intervals_of(layout, dim, shape[dim], coordinate);
    result[dim] = held.empty() ? shape[dim] : held.front().begin;
  }
  return result;
}

}  // namespace intarsia
