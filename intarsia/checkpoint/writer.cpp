#include "intarsia/checkpoint/writer.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/checksum.h"

namespace intarsia::checkpoint {
namespace {

// Values as they stand in a file: dense, on the CPU, with nothing only noted.
at::Tensor as_stored(const at::Tensor& values) { return values.cpu().resolve_conj().resolve_neg().contiguous(); }

// A block is counted and written while it is in the cache.
std::vector<uint64_t> write_counted(const OpenFile& file, const char* data, int64_t bytes, int64_t offset, Progress& progress) {
  std::vector<uint64_t> checksums;
  for (int64_t done = 0; done < bytes; done += kChecksumBlock) {
    auto length = std::min(kChecksumBlock, bytes - done);
    checksums.push_back(checksum_of(data + done, length));
    file.write(data + done, length, offset + done);
    progress.add(length);
  }
  return checksums;
}

}  // namespace

int64_t bytes_of(const OwnedPart& part) {
  return std::accumulate(part.pieces.begin(), part.pieces.end(), int64_t{0},
                         [](int64_t sum, auto& piece) { return sum + static_cast<int64_t>(piece.values.nbytes()); });
}

CheckpointIndex write_part(const std::string& folder, const std::string& name, const OwnedPart& part,
                           const std::map<std::string, IndexedTensor>& forms, Progress& progress) {
  // Large elements first: so every tensor begins at a multiple of its element.
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
  auto header = header_for(stored, {{"format", "pt"}});
  auto file = OpenFile::writing(folder + "/" + name);
  file.write(header.data(), header.size(), 0);
  int64_t end = header.size();
  for (size_t i = 0; i < order.size(); ++i) {
    auto values = as_stored(order[i]->values);
    try {
      auto checksums =
          write_counted(file, static_cast<const char*>(values.const_data_ptr()), stored[i].bytes, stored[i].offset, progress);
      result.tensors.at(order[i]->tensor).pieces.push_back({0, stored[i].offset, order[i]->box, std::move(checksums)});
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "tensor \"", order[i]->tensor, "\": ", error.what_without_backtrace());
    }
    end += stored[i].bytes;
  }
  file.sync();
  result.files.push_back({name, part.rank, end, checksum_of(header.data(), header.size())});
  return result;
}

}  // namespace intarsia::checkpoint
