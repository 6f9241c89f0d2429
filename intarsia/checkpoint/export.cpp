#include "intarsia/checkpoint/export.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "intarsia/checkpoint/byte_runs.h"
#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/gather_text.h"
#include "intarsia/checkpoint/hugging_face.h"
#include "intarsia/checkpoint/pieces.h"
#include "intarsia/checkpoint/reader.h"
#include "intarsia/checkpoint/slabs.h"
#include "intarsia/checkpoint/writer.h"
#include "intarsia/comm/trace.h"

namespace intarsia::checkpoint {
namespace {

constexpr int64_t kMostExportedAtOnce = 16 << 20;  // bytes of elements in memory at a time

// A file to be written, and the tensors in it.
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
    files[i].name = files.size() == 1 ? kHuggingFaceFile : name;
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
    if (planned.bytes > static_cast<int64_t>(planned.header.size()))
      file.write("", 1, planned.bytes - 1);  // gives the file its final length
    for (auto& tensor : planned.tensors) map[tensor.name] = planned.name, total += tensor.bytes;
  }
  if (files.size() == 1) return;
  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_text(folder + "/" + kHuggingFaceIndex, index.dump(2) + "\n");
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

// Whether an export writes files of this name.
bool is_exported_name(const std::string& name) {
  size_t number = 0, of = 0;
  int length = 0;
  bool numbered = std::sscanf(name.c_str(), "model-%5zu-of-%5zu.safetensors%n", &number, &of, &length) == 2;
  return name == kHuggingFaceFile || name == kHuggingFaceIndex || (numbered && length == static_cast<int>(name.size()));
}

// A folder of Hugging Face often has more files than weights, and a new folder replaces the old one.
void check_export_place(const std::string& path, bool replace) {
  if (!path_exists(path) || replace) return;
  TORCH_CHECK_VALUE(std::filesystem::is_directory(path), "[checkpoint::export_full] ", path,
                    " is a file. Name a folder.");
  for (auto& name : names_in(path)) {
    TORCH_CHECK_VALUE(is_exported_name(name), "[checkpoint::export_full] ", path, " has ", name,
                      ", which would be lost. Name a new folder, or set replace.");
  }
}

// Calls `write(folder)` for a new folder, which then replaces `path`. Called by one process, or by the first rank.
template <class Write>
void put_new_folder(const std::string& path, Write write) {
  auto id = new_id();
  auto folder = path + kSavingMark + id;
  auto lock = begin_folder(path, id);
  try {
    remove_abandoned(folder_of(path));
    write(folder);
    complete_folder(folder, path);
  } catch (...) {
    try_to_remove(folder);
    throw;
  }
  try_to_remove(folder);  // what it replaced
}

// Fills a file with tensors of a checkpoint, slab by slab.
void copy_tensors(PieceReader& reader, const std::string& folder, const PlannedFile& planned,
                  const std::map<std::string, IndexedTensor>& forms, Progress& progress) {
  auto file = OpenFile::changing(folder + "/" + planned.name);
  Progress quiet("", 0, nullptr, false);
  for (auto& tensor : planned.tensors) {
    auto element = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for_each_slab(whole_box(tensor.shape), kMostExportedAtOnce / element, [&](const Box& slab) {
      auto values = at::empty(slab.shape, tensor.dtype);
      reader.read(forms.at(tensor.name), slab, values, quiet);
      write_box(file, tensor, {tensor.name, slab, values}, progress);
    });
  }
  file.sync();
}

// The prefixes of optimizer states: optimizer.state. for one that was saved as "optimizer".
std::vector<std::string> optimizers_in(const CheckpointIndex& index) {
  static const std::string kEnd = "groups.size";
  std::vector<std::string> scopes;
  for (auto& [name, value] : index.values) {
    auto scope = name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : "-";
    if (scope.empty() || scope.back() == '.') scopes.push_back(scope + "state.");
  }
  return scopes;
}

// Maps the name of a tensor in the new files to its name in the checkpoint.
std::map<std::string, std::string> names_to_export(const CheckpointIndex& index, const std::string& item,
                                                   const Rename& rename, Exported& exported) {
  std::map<std::string, std::string> names;
  auto optimizers = optimizers_in(index);
  auto scope = item.empty() ? "" : item + ".";
  for (auto& [name, tensor] : index.tensors) {
    bool is_state =
        std::any_of(optimizers.begin(), optimizers.end(), [&](auto& begin) { return name.starts_with(begin); });
    if (is_state || !name.starts_with(scope)) {
      ++(is_state ? exported.states : exported.others);
      continue;
    }
    auto inner = name.substr(scope.size());
    auto to = rename ? rename(inner) : inner;
    TORCH_CHECK_VALUE(names.emplace(to, name).second, "[checkpoint::export_checkpoint] two tensors get the name \"", to,
                      "\". Give each a unique name.");
  }
  TORCH_CHECK_VALUE(!names.empty(), "[checkpoint::export_checkpoint] the checkpoint has no tensor to export",
                    item.empty() ? "." : " under \"" + item + "\". intarsia checkpoint show lists what it has.");
  exported.values = index.values.size();
  return names;
}

Tensors exported_tensors(const Items& items, const Rename& rename) {
  auto contents = contents_of(items);
  TORCH_CHECK_VALUE(contents.values.empty(), "[checkpoint::export_full] \"", contents.values.begin()->first,
                    "\" is no tensor, and files for others hold tensors only. Leave it out.");
  std::set<std::string> names;
  for (auto& [name, tensor] : contents.tensors) {
    if (rename) name = rename(name);
    TORCH_CHECK_VALUE(names.insert(name).second, "[checkpoint::export_full] two tensors get the name \"", name,
                      "\". Give each a unique name.");
  }
  return std::move(contents.tensors);
}

}  // namespace

void export_full(const std::string& place, const Items& items, const ExportOptions& options) {
  CauseScope cause("checkpoint::export_full", false);
  auto& world = current_world("checkpoint::export_full");
  bool leads = world.hosted()[0] == 0;
  auto together = [&](const std::function<void()>& step) { do_together(world, "checkpoint::export_full", step); };
  std::string path;
  std::map<std::string, IndexedTensor> forms;
  std::vector<OwnedPart> parts;
  std::vector<PlannedFile> files;
  together([&] {
    path = checked_place(place, "export_full");
    if (leads) check_export_place(path, options.replace);
    auto tensors = exported_tensors(items, options.rename);
    parts = owned_parts(world, tensors, forms);
    files = plan_files(forms, options.file_bytes);
  });
  auto id = gather_texts(world, std::vector<std::string>(world.hosted().size(), new_id()))[0];
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
  } catch (...) {  // on all ranks, so no rank writes any more
    if (leads) try_to_remove(folder);
    throw;
  }
  if (leads) try_to_remove(folder);  // what it replaced
}

Exported export_checkpoint(const std::string& from, const std::string& place, const std::string& item,
                           const ExportOptions& options) {
  auto path = checked_place(place, "export_checkpoint");
  TORCH_CHECK_VALUE(options.replace || !path_exists(path), "[checkpoint::export_checkpoint] ", path,
                    " is there already. Name another place, or set replace (--replace).");
  auto index = read_index(from);
  check_files(from, index);
  Exported exported;
  auto names = names_to_export(index, item, options.rename, exported);
  std::map<std::string, IndexedTensor> forms;
  for (auto& [to, name] : names) forms.emplace(to, index.tensors.at(name));
  auto files = plan_files(forms, options.file_bytes);
  for (auto& file : files) {
    exported.bytes += file.bytes;
    exported.tensors += file.tensors.size();
  }
  exported.files = files.size();
  put_new_folder(path, [&](const std::string& folder) {
    make_files(folder, files);
    Progress progress("exporting " + from, exported.bytes, options.progress, !options.quiet);
    PieceReader reader(from, index);
    for (auto& file : files) copy_tensors(reader, folder, file, forms, progress);
  });
  return exported;
}

}  // namespace intarsia::checkpoint
