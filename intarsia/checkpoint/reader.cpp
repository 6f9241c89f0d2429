#include "intarsia/checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/byte_runs.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/slabs.h"

namespace intarsia::checkpoint {
namespace {

constexpr int64_t kMostStaged = 16 << 20;  // bytes staged for memory that cannot be read into directly
constexpr int64_t kWorthARead = 4096;      // runs of this many bytes are read one by one, if nothing has to be checked

}  // namespace

// The bytes of one piece.
struct PieceReader::Source {
  const OpenFile& file;
  const StoredPiece& piece;
  int64_t bytes;
  Progress& progress;
  std::string block = {};  // the last block of which only a part was wanted
  int64_t block_number = -1;

  void check(uint64_t checksum, int64_t length, int64_t number) const {
    TORCH_CHECK(checksum == piece.checksums[number], "the checksum of bytes ", piece.offset + number * kChecksumBlock,
                " to ", piece.offset + number * kChecksumBlock + length, " of ", file.path(),
                " does not fit: the file is damaged");
  }

  // Whole blocks are read directly into the target, and their checksums are computed while they are in the caches. Of
  // others, a part is copied.
  void read_checked(char* to, int64_t begin, int64_t length) {
    for (auto end = begin + length; begin < end;) {
      auto number = begin / kChecksumBlock, block_begin = number * kChecksumBlock,
           block_end = std::min(bytes, block_begin + kChecksumBlock);
      bool whole = begin == block_begin && end >= block_end;
      auto done = whole ? read_block(to, block_begin, block_end) : copy_from_block(to, begin, std::min(end, block_end));
      to += done, begin += done;
    }
  }

  int64_t read_block(char* to, int64_t begin, int64_t end) {
    file.read(to, end - begin, piece.offset + begin);
    check(checksum_of(to, end - begin), end - begin, begin / kChecksumBlock);
    progress.add(end - begin);
    return end - begin;
  }

  int64_t copy_from_block(char* to, int64_t begin, int64_t end) {
    auto number = begin / kChecksumBlock, block_begin = number * kChecksumBlock;
    if (block_number != number) {
      block.resize(std::min(bytes, block_begin + kChecksumBlock) - block_begin);
      block_number = -1;
      file.read(block.data(), block.size(), piece.offset + block_begin);
      check(checksum_of(block.data(), block.size()), block.size(), number);
      block_number = number;
    }
    std::memcpy(to, block.data() + begin - block_begin, end - begin);
    progress.add(end - begin);
    return end - begin;
  }

  // Nothing to check: reads only what is wanted, and gaps that cost less than another read.
  void read_unchecked(char* to, const ByteRuns& runs) {
    for (int64_t run = 0; run < runs.count();) {
      if (runs.length() >= kWorthARead) {
        file.read(to, runs.length(), piece.offset + runs.begin(run++));
        to += runs.length();
        progress.add(runs.length());
        continue;
      }
      auto begin = runs.begin(run), last = run;
      while (last + 1 < runs.count() && runs.begin(last + 1) + runs.length() - begin <= kChecksumBlock &&
             runs.begin(last + 1) - runs.begin(last) <= kWorthARead)
        ++last;
      block.resize(runs.begin(last) + runs.length() - begin);
      file.read(block.data(), block.size(), piece.offset + begin);
      for (; run <= last; ++run, to += runs.length())
        std::memcpy(to, block.data() + runs.begin(run) - begin, runs.length());
      progress.add(block.size());
    }
  }

  void read(char* to, const Box& part, int64_t element) {
    ByteRuns runs(piece.box, part, element);
    if (piece.checksums.empty()) return read_unchecked(to, runs);
    for (int64_t run = 0; run < runs.count(); ++run, to += runs.length())
      read_checked(to, runs.begin(run), runs.length());
  }
};

const OpenFile& PieceReader::file(int64_t number) {
  auto found = files_.find(number);
  if (found == files_.end())
    found = files_.emplace(number, OpenFile::reading(folder_ + "/" + index_.files[number].name)).first;
  return found->second;
}

void PieceReader::read_part(const IndexedTensor& tensor, const StoredPiece& piece, const Box& part,
                            const at::Tensor& target, Progress& progress) {
  auto element = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  Source source{file(piece.file), piece, piece.box.count() * element, progress};
  bool direct = target.is_cpu() && target.is_contiguous() && target.scalar_type() == tensor.dtype &&
                !target.is_conj() && !target.is_neg();
  if (direct) return source.read(static_cast<char*>(target.mutable_data_ptr()), part, element);
  for_each_slab(part, kMostStaged / element, [&](const Box& slab) {
    auto staged = at::empty(slab.shape, tensor.dtype);
    source.read(static_cast<char*>(staged.mutable_data_ptr()), slab, element);
    view_in_box(target, part, slab).copy_(staged);
  });
}

void PieceReader::check(const IndexedTensor& tensor, const StoredPiece& piece, Progress& progress) {
  auto bytes = piece.box.count() * static_cast<int64_t>(c10::elementSize(tensor.dtype));
  Source source{file(piece.file), piece, bytes, progress};
  std::string buffer(std::min(bytes, kChecksumBlock), '\0');
  for (int64_t begin = 0; begin < bytes; begin += kChecksumBlock) {
    auto length = std::min(kChecksumBlock, bytes - begin);
    if (piece.checksums.empty()) {
      source.file.read(buffer.data(), length, piece.offset + begin);
    } else {
      source.read_checked(buffer.data(), begin, length);
    }
  }
}

void PieceReader::read(const IndexedTensor& tensor, const Box& wanted, const at::Tensor& target, Progress& progress) {
  for (auto& piece : tensor.pieces) {
    auto part = overlap(piece.box, wanted);
    if (!part) continue;
    read_part(tensor, piece, *part, view_in_box(target, wanted, *part), progress);
  }
}

}  // namespace intarsia::checkpoint
