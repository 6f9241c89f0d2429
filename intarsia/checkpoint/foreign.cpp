#include "intarsia/checkpoint/foreign.h"

#include <set>

#include <nlohmann/json.hpp>

namespace intarsia::checkpoint {
namespace {

using nlohmann::json;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Which file has which tensor, as the index says.
std::map<std::string, std::string> weight_map(const std::string& path) {
  auto document = json::parse(read_text(path, int64_t{1} << 30), nullptr, false);
  auto map = document.is_object() ? document.find("weight_map") : document.end();
  TORCH_CHECK(document.is_object() && map != document.end() && map->is_object(), path,
              " is damaged: it is no JSON with a \"weight_map\"");
  std::map<std::string, std::string> result;
  for (auto& [name, file] : map->items()) {
    TORCH_CHECK(file.is_string(), path, " is damaged: \"", name, "\" names no file");
    auto text = file.get<std::string>();
    TORCH_CHECK(!text.empty() && text.find('/') == std::string::npos, path, " is damaged: \"", name, "\" is in \"", text,
                "\", which leaves the folder");
    result[name] = text;
  }
  return result;
}

void add_file(CheckpointIndex& index, const std::string& folder, const std::string& name) {
  auto file = OpenFile::reading(folder + "/" + name);
  auto header = read_header(file);
  auto number = static_cast<int64_t>(index.files.size());
  index.files.push_back({name, 0, file.size(), header.checksum});
  for (auto& tensor : header.tensors) {
    bool is_new =
        index.tensors
            .emplace(tensor.name,
                     IndexedTensor{tensor.dtype, tensor.shape, "plain", {{number, tensor.offset, whole_box(tensor.shape), {}}}})
            .second;
    TORCH_CHECK(is_new, "the tensor \"", tensor.name, "\" is in ", file.path(), " and in another file of ", folder);
  }
}

}  // namespace

bool is_foreign(const std::string& path) {
  return ends_with(path, ".safetensors") || path_exists(path + "/" + kForeignIndex) || path_exists(path + "/" + kForeignFile);
}

CheckpointIndex read_foreign(const std::string& path, std::string* folder) {
  CheckpointIndex index;
  if (ends_with(path, ".safetensors")) {
    *folder = folder_of(path);
    add_file(index, *folder, name_of(path));
    return index;
  }
  *folder = path;
  if (!path_exists(path + "/" + kForeignIndex)) {
    add_file(index, path, kForeignFile);
    return index;
  }
  auto map = weight_map(path + "/" + kForeignIndex);
  std::set<std::string> files;
  for (auto& [name, file] : map) files.insert(file);
  for (auto& file : files) add_file(index, path, file);
  for (auto& [name, file] : map) {
    auto found = index.tensors.find(name);
    TORCH_CHECK(found != index.tensors.end() && index.files[found->second.pieces[0].file].name == file, path, "/", kForeignIndex,
                " says that ", file, " has the tensor \"", name, "\", which it has not");
  }
  return index;
}

}  // namespace intarsia::checkpoint
