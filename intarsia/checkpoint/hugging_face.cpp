#include "intarsia/checkpoint/hugging_face.h"

#include <set>

#include <nlohmann/json.hpp>

namespace intarsia::checkpoint {
namespace {

using nlohmann::json;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Which file has which tensor, according to the index.
std::map<std::string, std::string> weight_map(const std::string& path) {
  auto document = json::parse(read_text(path, int64_t{1} << 30), nullptr, false);
  auto map = document.is_object() ? document.find("weight_map") : document.end();
  TORCH_CHECK(document.is_object() && map != document.end() && map->is_object(), path,
              " is damaged: it is no JSON with a \"weight_map\"");
  std::map<std::string, std::string> result;
  for (auto& [name, file] : map->items()) {
    TORCH_CHECK(file.is_string(), path, " is damaged: \"", name, "\" names no file");
    auto text = file.get<std::string>();
    TORCH_CHECK(!text.empty() && text.find('/') == std::string::npos, path, " is damaged: \"", name, "\" is in \"",
                text, "\", which leaves the folder");
    result[name] = text;
  }
  return result;
}

bool is_in_file(const CheckpointIndex& index, const std::string& tensor, const std::string& file) {
  auto found = index.tensors.find(tensor);
  return found != index.tensors.end() && index.files[found->second.pieces[0].file].name == file;
}

std::string not_in_file(const std::string& folder, const std::string& tensor, const std::string& file) {
  return folder + "/" + kHuggingFaceIndex + " says that " + file + " has the tensor \"" + tensor +
         "\", which it has not";
}

}  // namespace

bool is_hugging_face(const std::string& path) {
  return ends_with(path, ".safetensors") || path_exists(path + "/" + kHuggingFaceIndex) ||
         path_exists(path + "/" + kHuggingFaceFile);
}

HuggingFaceFiles hugging_face_files(const std::string& path) {
  if (ends_with(path, ".safetensors")) return {folder_of(path), {name_of(path)}, {}};
  if (!path_exists(path + "/" + kHuggingFaceIndex)) return {path, {kHuggingFaceFile}, {}};
  HuggingFaceFiles files{path, {}, weight_map(path + "/" + kHuggingFaceIndex)};
  std::set<std::string> names;
  for (auto& [tensor, file] : *files.map) names.insert(file);
  files.names.assign(names.begin(), names.end());
  return files;
}

void add_hugging_face_file(CheckpointIndex& index, const std::string& folder, const std::string& name) {
  auto file = OpenFile::reading(folder + "/" + name);
  auto header = read_header(file);
  auto number = static_cast<int64_t>(index.files.size());
  index.files.push_back({name, 0, file.size(), header.checksum});
  for (auto& tensor : header.tensors) {
    bool is_new =
        index.tensors
            .emplace(tensor.name,
                     IndexedTensor{
                         tensor.dtype, tensor.shape, "plain", {{number, tensor.offset, whole_box(tensor.shape), {}}}})
            .second;
    TORCH_CHECK(is_new, "the tensor \"", tensor.name, "\" is in ", file.path(), " and in another file of ", folder);
  }
}

std::vector<std::string> problems_of_map(const HuggingFaceFiles& files, const CheckpointIndex& index) {
  std::vector<std::string> problems;
  if (!files.map) return problems;
  std::set<std::string> read;
  for (auto& file : index.files) read.insert(file.name);
  for (auto& [name, file] : *files.map) {
    if (!read.contains(file) || is_in_file(index, name, file)) continue;
    problems.push_back(not_in_file(files.folder, name, file));
  }
  for (auto& [name, tensor] : index.tensors) {
    if (files.map->contains(name)) continue;
    problems.push_back(c10::str(files.folder, "/", kHuggingFaceIndex, " does not name the tensor \"", name,
                                "\", which ", index.files[tensor.pieces[0].file].name, " has"));
  }
  return problems;
}

CheckpointIndex read_hugging_face(const std::string& path, std::string* folder) {
  CheckpointIndex index;
  auto files = hugging_face_files(path);
  *folder = files.folder;
  for (auto& name : files.names) add_hugging_face_file(index, files.folder, name);
  if (!files.map) return index;
  for (auto& [name, file] : *files.map) TORCH_CHECK(is_in_file(index, name, file), not_in_file(path, name, file));
  return index;
}

}  // namespace intarsia::checkpoint
