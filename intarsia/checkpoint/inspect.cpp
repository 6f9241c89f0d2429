#include "intarsia/checkpoint/inspect.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/checksum.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/hugging_face.h"
#include "intarsia/checkpoint/load.h"
#include "intarsia/checkpoint/reader.h"
#include "intarsia/checkpoint/writer.h"

namespace intarsia::checkpoint {
namespace {

constexpr int64_t kMostFiles = 1 << 20;

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

// A letter per file and a cell for each of up to 32 equal parts of the tensor: the file that has it, or * if several
// do.
std::string picture(const IndexedTensor& tensor) {
  constexpr int64_t kCells = 32;
  auto whole = whole_box(tensor.shape);
  auto cells = std::min(kCells, whole.count());
  std::string text;
  for (int64_t cell = 0; cell < cells; ++cell) {
    auto part = part_of_box(whole, cells, cell);
    int64_t most = 0, file = 0;
    for (auto& piece : tensor.pieces) {
      auto both = overlap(part, piece.box);
      if (both && both->count() > most) most = both->count(), file = piece.file;
    }
    if (part.count()) text += most == part.count() ? static_cast<char>('A' + file % 26) : '*';
  }
  return text;
}

struct Opened {
  CheckpointIndex index;
  std::string folder;
  bool hugging_face;
};

Opened open_any(const std::string& path) {
  Opened opened{{}, path, !path_exists(path + "/" + kIndexName) && is_hugging_face(path)};
  opened.index = opened.hugging_face ? read_hugging_face(path, &opened.folder) : read_index(path);
  return opened;
}

// Writes the tensors of `source`, each split over `files` files, and records in `index` where they are.
void write_in_files(const CheckpointIndex& source, const std::string& folder, int64_t files, const std::string& target,
                    Progress& reading, CheckpointIndex& index) {
  auto forms = source.tensors;
  for (auto& [name, form] : forms) form.pieces.clear();
  index.tensors = forms;
  PieceReader reader(folder, source);
  Progress writing("writing " + target, bytes_of_files(source), nullptr, false);
  for (int64_t i = 0; i < files; ++i) {
    OwnedPart part{i, {}};
    for (auto& [name, tensor] : source.tensors) {
      auto box = part_of_box(whole_box(tensor.shape), files, i);
      if (box.count() == 0) continue;
      part.pieces.push_back({name, box, at::empty(box.shape, tensor.dtype)});
      reader.read(tensor, box, part.pieces.back().values, reading);
    }
    auto written = write_part(target, c10::str("rank-", i, "-of-", files, ".safetensors"), part, forms, writing);
    for (auto& [name, tensor] : written.tensors) {
      for (auto& piece : tensor.pieces) {
        piece.file = index.files.size();
        index.tensors.at(name).pieces.push_back(piece);
      }
    }
    index.files.insert(index.files.end(), written.files.begin(), written.files.end());
  }
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = bytes;
  int unit = 0;
  while (value >= 1000 && unit < 5) value /= 1000, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text;
}

int64_t bytes_of_files(const CheckpointIndex& index) {
  int64_t sum = 0;
  for (auto& file : index.files) sum += file.bytes;
  return sum;
}

std::string listing(const std::string& folder) {
  std::string text;
  for (auto& path : complete(folder)) {
    auto index = read_index(path);
    text += c10::str(padded(name_of(path), 24), " ", padded(bytes_text(bytes_of_files(index)), 10), " ",
                     index.tensors.size(), " tensors, ", index.files.size(), " files, ", index.ranks, " ranks\n");
  }
  return text.empty() ? "There is no complete checkpoint in " + folder + ".\n" : text;
}

std::string description(const std::string& path, bool pictures) {
  auto [index, folder, hugging_face] = open_any(path);
  size_t width = 0;
  for (auto& [name, tensor] : index.tensors) width = std::max(width, name.size());
  auto text = c10::str(path, ": ",
                       hugging_face ? "files of safetensors, without checksums"
                                    : "a checkpoint of " + std::to_string(index.ranks) + " ranks",
                       ", ", bytes_text(bytes_of_files(index)), "\n\n");
  for (auto& [name, tensor] : index.tensors) {
    text += c10::str(padded(name, width), "  ", tensor.form(), "  ", tensor.layout, "\n");
    if (!pictures || hugging_face) continue;
    text += "    |" + picture(tensor) + "|";
    for (auto& piece : tensor.pieces) {
      text += c10::str(" ", static_cast<char>('A' + piece.file % 26), str(piece.box));
      if (&piece - tensor.pieces.data() == 7 && tensor.pieces.size() > 8) {
        text += c10::str(" and ", tensor.pieces.size() - 8, " more");
        break;
      }
    }
    text += "\n";
  }
  if (!index.values.empty()) text += "\n";
  for (auto& [name, value] : index.values) text += name + " = " + str(value) + "\n";
  text += "\n";
  for (size_t i = 0; i < index.files.size(); ++i) {
    auto& file = index.files[i];
    text += c10::str(hugging_face ? "" : c10::str(static_cast<char>('A' + i % 26), "  "), file.name, "  ",
                     bytes_text(file.bytes));
    if (!hugging_face) text += c10::str("  by rank ", file.rank, ", header ", checksum_text(file.header_checksum));
    text += "\n";
  }
  return text;
}

void convert(const std::string& from, const std::string& place, int64_t files, bool replace) {
  auto to = checked_place(place, "convert");
  check_replaceable(to, "convert");
  TORCH_CHECK_VALUE(replace || !path_exists(to + "/" + kIndexName), "[checkpoint::convert] there is a checkpoint at ",
                    to, " already. Name another place, or set replace (--replace).");
  TORCH_CHECK_VALUE(files > 0, "[checkpoint::convert] cannot write ", files, " files. Give one at least.");
  TORCH_CHECK_VALUE(files <= kMostFiles, "[checkpoint::convert] cannot write ", files, " files. Give ", kMostFiles,
                    " at most.");
  auto [source, folder, hugging_face] = open_any(from);
  if (!hugging_face) check_files(folder, source);
  CheckpointIndex index;
  index.id = new_id();
  index.ranks = files;
  index.values = source.values;
  auto target = to + kSavingMark + index.id;
  auto lock = begin_folder(to, index.id);
  try {
    remove_abandoned(folder_of(to));
    Progress reading("reading " + from, bytes_of_files(source), nullptr, true);
    write_in_files(source, folder, files, target, reading, index);
    index.sequence = next_sequence(folder_of(to));
    complete_checkpoint(target, to, index);
  } catch (...) {
    try_to_remove(target);
    throw;
  }
  try_to_remove(target);  // what it replaced
}

}  // namespace intarsia::checkpoint
