#include "intarsia/checkpoint/export.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "intarsia/checkpoint/byte_runs.h"
#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/foreign.h"
#include "intarsia/checkpoint/pieces.h"
#include "intarsia/checkpoint/tell.h"
#include "intarsia/checkpoint/writer.h"

namespace intarsia::checkpoint {
namespace {

// One file to be, and what stands where in it.
struct PlannedFile {
  std::string name;
  std::vector<StoredTensor> tensors;
  std::string header;
  int64_t bytes = 0;
};

// The same on every rank: names in order, as many to a file as fit.
std::vector<PlannedFile> plan_files(const std::map<std::string, IndexedTensor>& forms, int64_t most) {
  std::vector<PlannedFile> files(1);
  for (auto& [name, form] : forms) {
    auto bytes = checked_bytes(form.shape, form.dtype);
    if (files.back().bytes && files.back().bytes + bytes > most) files.emplace_back();
    files.back().tensors.push_back({name, form.dtype, form.shape, 0, bytes});
    files.back().bytes += bytes;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? kForeignFile : name;
    std::stable_sort(files[i].tensors.begin(), files[i].tensors.end(),
                     [](auto& a, auto& b) { return c10::elementSize(a.dtype) > c10::elementSize(b.dtype); });
    files[i].header = header_for(files[i].tensors, {{"format", "pt"}});
    files[i].bytes += files[i].header.size();
  }
  return files;
}

void make_files(const std::string& folder, const std::vector<PlannedFile>& files) {
  int64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (auto& planned : files) {
    auto file = OpenFile::writing(folder + "/" + planned.name);
    file.write(planned.header.data(), planned.header.size(), 0);
    if (planned.bytes > static_cast<int64_t>(planned.header.size())) file.write("", 1, planned.bytes - 1);  // as long as it will be
    for (auto& tensor : planned.tensors) map[tensor.name] = planned.name, total += tensor.bytes;
  }
  if (files.size() == 1) return;
  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_text(folder + "/" + kForeignIndex, index.dump(2) + "\n");
}

void write_box(const OpenFile& file, const StoredTensor& tensor, const OwnedPiece& piece, Progress& progress) {
  auto values = piece.values.cpu().resolve_conj().resolve_neg().contiguous();
  auto* data = static_cast<const char*>(values.const_data_ptr());
  auto whole = whole_box(tensor.shape);
  ByteRuns runs(whole, piece.box, values.element_size());
  for (int64_t run = 0; run < runs.count(); ++run, data += runs.length()) {
    file.write(data, runs.length(), tensor.offset + runs.begin(run));
    progress.add(runs.length());
  }
}

// The hosted ranks' pieces, file by file.
void write_pieces(const std::string& folder, const std::vector<PlannedFile>& files, const std::vector<OwnedPart>& parts,
                  Progress& progress) {
  std::map<std::string, std::vector<const OwnedPiece*>> pieces;
  for (auto& part : parts) {
    for (auto& piece : part.pieces) pieces[piece.tensor].push_back(&piece);
  }
  for (auto& planned : files) {
    std::optional<OpenFile> file;
    for (auto& tensor : planned.tensors) {
      for (auto* piece : pieces[tensor.name]) {
        if (!file) file.emplace(OpenFile::changing(folder + "/" + planned.name));
        write_box(*file, tensor, *piece, progress);
      }
    }
    if (file) file->sync();
  }
}

std::string attempt(const std::function<void()>& step) {
  try {
    step();
    return "";
  } catch (const std::exception& error) {
    return words_of(error);
  }
}

}  // namespace

void export_full(const std::string& path, const Items& items, const ExportOptions& options) {
  auto& world = current_world();
  auto contents = contents_of(items);
  TORCH_CHECK_VALUE(contents.values.empty(), "[checkpoint::export_full] \"", contents.values.begin()->first,
                    "\" is no tensor, and files for others hold tensors only. Leave it out.");
  std::map<std::string, IndexedTensor> forms;
  if (options.rename) {
    for (auto& tensor : contents.tensors) tensor.first = options.rename(tensor.first);
  }
  auto parts = owned_parts(world, contents.tensors, forms);
  TORCH_CHECK_VALUE(forms.size() == contents.tensors.size(), "[checkpoint::export_full] two tensors get one name.");
  auto files = plan_files(forms, options.file_bytes);
  bool leads = world.hosted()[0] == 0;
  auto to_all = [&](const std::string& text) { return std::vector<std::string>(world.hosted().size(), text); };
  auto folder = path + kSavingMark + told_by_all(world, to_all(new_id()))[0];
  std::optional<OpenFile> lock;
  auto error = leads ? attempt([&] {
    lock.emplace(begin_folder(path, folder.substr(path.size() + std::string(kSavingMark).size())));
    remove_abandoned(folder_of(path));
    make_files(folder, files);
  })
                     : "";
  raise_together(world, "checkpoint::export_full", to_all(error));
  int64_t total = 0;
  for (auto& part : parts) total += bytes_of(part);
  Progress progress("exporting " + path, total, options.progress, leads && !options.quiet);
  error = attempt([&] { write_pieces(folder, files, parts, progress); });
  raise_together(world, "checkpoint::export_full", to_all(error));
  error = leads ? attempt([&] { complete_folder(folder, path); }) : "";
  raise_together(world, "checkpoint::export_full", to_all(error));
}

}  // namespace intarsia::checkpoint
