#pragma once
// The byte ranges that a part of a box occupies in the row-major memory or file of the whole box.

#include <cstdint>

#include "intarsia/redistribute/boxes.h"

namespace intarsia::checkpoint {

// All runs have one length, and ascend.
class ByteRuns {
 public:
  ByteRuns(const Box& piece, const Box& part, int64_t element) : piece_(piece), part_(part), length_(element) {
    auto dim = static_cast<int64_t>(part.shape.size());
    while (dim > 0 && part.shape[dim - 1] == piece.shape[dim - 1]) length_ *= part.shape[--dim];
    if (dim > 0) length_ *= part.shape[--dim];  // of the first sharded dim, a run is the wanted part
    outer_ = dim;
    count_ = 1;
    for (int64_t d = 0; d < outer_; ++d) count_ *= part.shape[d];
    element_ = element;
  }
  int64_t length() const { return length_; }
  int64_t count() const { return count_; }
  int64_t begin(int64_t run) const {  // in bytes from the beginning of the piece
    int64_t offset = 0, stride = element_;
    for (int64_t d = static_cast<int64_t>(piece_.shape.size()) - 1; d >= 0; --d) {
      int64_t position = part_.begin[d] - piece_.begin[d];
      if (d < outer_) position += run % part_.shape[d], run /= part_.shape[d];
      offset += position * stride;
      stride *= piece_.shape[d];
    }
    return offset;
  }

 private:
  const Box &piece_, &part_;
  int64_t length_, count_, outer_, element_;
};

}  // namespace intarsia::checkpoint
