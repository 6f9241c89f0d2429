#pragma once
// Splits a box into parts that are contiguous in its row-major storage.

#include <algorithm>
#include <cstdint>

#include "intarsia/redistribute/boxes.h"

namespace intarsia::checkpoint {

// Calls `body` for parts of a box that have at most `most` elements each.
template <class Body>
void for_each_slab(const Box& box, int64_t most, const Body& body) {
  if (box.count() <= most) return body(box);
  size_t dim = 0;
  while (box.shape[dim] == 1) ++dim;
  auto rows = std::max<int64_t>(1, most / (box.count() / box.shape[dim]));
  for (int64_t begin = 0; begin < box.shape[dim]; begin += rows) {
    auto slab = box;
    slab.begin[dim] += begin;
    slab.shape[dim] = std::min(rows, box.shape[dim] - begin);
    for_each_slab(slab, most, body);
  }
}

// The part `inner` of a tensor that holds the box `outer`.
inline at::Tensor view_in_box(const at::Tensor& tensor, const Box& outer, const Box& inner) {
  auto begin = inner.begin;
  for (size_t dim = 0; dim < begin.size(); ++dim) begin[dim] -= outer.begin[dim];
  return view_of_box(tensor, begin, inner.shape);
}

}  // namespace intarsia::checkpoint
