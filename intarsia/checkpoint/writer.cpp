#include "intarsia/checkpoint/writer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/checksum.h"

namespace intarsia::checkpoint {
namespace {

// Values as they are stored: dense, on the CPU, with lazy conjugates and negatives computed.
at::Tensor as_stored(const at::Tensor& values) { return values.cpu().resolve_conj().resolve_neg().contiguous(); }

constexpr int64_t kSyncedAtOnce = 16 << 20;

// Note [Blocks of a file]
// The system caches a file in pages as large as the writes. A virtual machine gives pages of more than 256 kB back to
// its host while they are free, and writing to such pages takes three times as long there. So a file is written in
// blocks of 256 kB, from its beginning to its end: directly from the tensors' memory, and smaller pieces are gathered
// into a block first.
constexpr int64_t kBlock = 256 << 10;

class PartFile {
 public:
  explicit PartFile(OpenFile file) : file_(std::move(file)) {}
  // The number of bytes up to the end of a block.
  int64_t room() const { return kBlock - end_ % kBlock; }
  void write(const char* data, int64_t bytes) {  // at most room() bytes
    if (bytes == kBlock) {
      put(data, bytes);
    } else {
      gathered_.append(data, bytes);
      if (bytes == room()) flush();
    }
    end_ += bytes;
  }
  void flush() {
    put(gathered_.data(), gathered_.size());
    gathered_.clear();
  }
  void sync() { file_.sync(); }
  int64_t end() const { return end_; }

 private:
  void put(const char* data, int64_t bytes) {
    file_.write(data, bytes, written_);
    written_ += bytes;
    if (written_ - synced_ < kSyncedAtOnce) return;
    file_.begin_sync(written_ - synced_, synced_);  // the disk starts writing while the rest is copied
    synced_ = written_;
  }

  OpenFile file_;
  std::string gathered_;
  int64_t end_ = 0, written_ = 0, synced_ = 0;
};

void write_all(PartFile& file, const char* data, int64_t bytes) {
  for (int64_t some; bytes > 0; data += some, bytes -= some) file.write(data, some = std::min(bytes, file.room()));
}

// Computes the checksums of blocks and writes them while they are in the cache.
std::vector<uint64_t> write_counted(PartFile& file, const char* data, int64_t bytes, Progress& progress) {
  std::vector<uint64_t> checksums;
  for (int64_t done = 0, counted = 0; done < bytes;) {
    auto some = std::min(bytes - done, file.room());
    for (int64_t length; counted < done + some; counted += length) {
      length = std::min(kChecksumBlock, bytes - counted);
      checksums.push_back(checksum_of(data + counted, length));
      progress.add(length);
    }
    file.write(data + done, some);
    done += some;
  }
  return checksums;
}

// The index says where a piece is in a file; names only have to differ. Two are equal if a tensor's name looks like a
// box of another.
void make_distinct(std::vector<StoredTensor>& tensors) {
  std::set<std::string> seen;
  for (auto& tensor : tensors) {
    auto name = tensor.name;
    for (int copy = 2; tensor.name == kMetadataName || !seen.insert(tensor.name).second; ++copy)
      tensor.name = c10::str(name, " (", copy, ")");
  }
}

}  // namespace

int64_t bytes_of(const OwnedPart& part) {
  return std::accumulate(part.pieces.begin(), part.pieces.end(), int64_t{0},
                         [](int64_t sum, auto& piece) { return sum + static_cast<int64_t>(piece.values.nbytes()); });
}

CheckpointIndex write_part(const std::string& folder, const std::string& name, const OwnedPart& part,
                           const std::map<std::string, IndexedTensor>& forms, Progress& progress) {
  // Large elements first, so that every tensor begins at a multiple of its element size.
  std::vector<const OwnedPiece*> order;
  for (auto& piece : part.pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](auto* a, auto* b) { return a->values.element_size() > b->values.element_size(); });
  std::vector<StoredTensor> stored;
  for (auto* piece : order) {
    stored.push_back({piece_name(piece->tensor, piece->box, forms.at(piece->tensor).shape), piece->values.scalar_type(),
                      piece->box.shape, 0, 0});
  }
  CheckpointIndex result;
  result.tensors = forms;
  if (order.empty()) return result;
  make_distinct(stored);
  auto header = header_for(stored, {{"format", "pt"}});
  PartFile file(OpenFile::writing(folder + "/" + name));
  write_all(file, header.data(), header.size());
  for (size_t i = 0; i < order.size(); ++i) {
    auto values = as_stored(order[i]->values);
    try {
      auto checksums =
          write_counted(file, static_cast<const char*>(values.const_data_ptr()), stored[i].bytes, progress);
      if (i + 1 == order.size()) file.flush();
      result.tensors.at(order[i]->tensor).pieces.push_back({0, stored[i].offset, order[i]->box, std::move(checksums)});
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "tensor \"", order[i]->tensor, "\": ", error.what_without_backtrace());
    }
  }
  file.sync();
  result.files.push_back({name, part.rank, file.end(), checksum_of(header.data(), header.size())});
  return result;
}

}  // namespace intarsia::checkpoint
