#include "intarsia/checkpoint/export.h"

#include <algorithm>
#include <optional>
#include <set>

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
        try {
          write_box(*file, tensor, *piece, progress);
        } catch (const c10::Error& error) {
          TORCH_CHECK(false, "tensor \"", tensor.name, "\": ", error.what_without_backtrace());
        }
      }
    }
    if (file) file->sync();
  }
}

Tensors exported_tensors(const Items& items, const Rename& rename) {
  auto contents = contents_of(items);
  TORCH_CHECK_VALUE(contents.values.empty(), "[checkpoint::export_full] \"", contents.values.begin()->first,
                    "\" is no tensor, and files for others hold tensors only. Leave it out.");
  std::set<std::string> names;
  for (auto& [name, tensor] : contents.tensors) {
    if (rename) name = rename(name);
    TORCH_CHECK_VALUE(names.insert(name).second, "[checkpoint::export_full] two tensors get the name \"", name,
                      "\". Give each a name of its own.");
  }
  return std::move(contents.tensors);
}

}  // namespace

void export_full(const std::string& place, const Items& items, const ExportOptions& options) {
  auto& world = current_world();
  bool leads = world.hosted()[0] == 0;
  auto together = [&](const std::function<void()>& step) { do_together(world, "checkpoint::export_full", step); };
  std::string path;
  std::map<std::string, IndexedTensor> forms;
  std::vector<OwnedPart> parts;
  std::vector<PlannedFile> files;
  together([&] {
    path = checked_place(place, "export_full");
    auto tensors = exported_tensors(items, options.rename);
    parts = owned_parts(world, tensors, forms);
    files = plan_files(forms, options.file_bytes);
  });
  auto id = told_by_all(world, std::vector<std::string>(world.hosted().size(), new_id()))[0];
  auto folder = path + kSavingMark + id;
  std::optional<OpenFile> lock;
  int64_t total = 0;
  for (auto& part : parts) total += bytes_of(part);
  Progress progress("exporting " + path, total, options.progress, leads && !options.quiet);
  try {
    together([&] {
      if (!leads) return;
      lock.emplace(begin_folder(path, id));
      remove_abandoned(folder_of(path));
      make_files(folder, files);
    });
    together([&] { write_pieces(folder, files, parts, progress); });
    together([&] {
      if (leads) complete_folder(folder, path);
    });
  } catch (...) {  // on all ranks, so nobody writes any more
    if (leads) try_to_remove(folder);
    throw;
  }
  if (leads) try_to_remove(folder);  // what stood in its place
}

}  // namespace intarsia::checkpoint
