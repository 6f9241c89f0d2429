#pragma once
// Reads boxes of tensors from files and checks their checksums.

#include <map>
#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

// The files of one checkpoint, opened when they are first needed.
class PieceReader {
 public:
  PieceReader(std::string folder, const CheckpointIndex& index) : folder_(std::move(folder)), index_(index) {}

  // Copies the box `wanted` of a stored tensor into `target`, which has its shape: any strides, any dtype that values
  // convert to. Checks the checksum of every block that it reads. Holds at most 40 MB in addition to the target.
  void read(const IndexedTensor& tensor, const Box& wanted, const at::Tensor& target, Progress& progress);

  // Reads a whole piece and checks it; for a file without checksums, only checks that it is there.
  void check(const IndexedTensor& tensor, const StoredPiece& piece, Progress& progress);

 private:
  struct Source;
  const OpenFile& file(int64_t number);
  void read_part(const IndexedTensor& tensor, const StoredPiece& piece, const Box& part, const at::Tensor& target,
                 Progress& progress);
  std::string folder_;
  const CheckpointIndex& index_;
  std::map<int64_t, OpenFile> files_;
};

}  // namespace intarsia::checkpoint
