#pragma once
// Reads Hugging Face's format: a safetensors file, or a folder of them with an index. They have no checksums and whole
// tensors only.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"

namespace intarsia::checkpoint {

constexpr const char* kHuggingFaceFile = "model.safetensors";
constexpr const char* kHuggingFaceIndex = "model.safetensors.index.json";

// Whether `path` is a safetensors file, or a folder with one of the two above.
bool is_hugging_face(const std::string& path);

// The files that belong together, and what their index says of them.
struct HuggingFaceFiles {
  std::string folder;
  std::vector<std::string> names;
  std::optional<std::map<std::string, std::string>> map;  // from a tensor to its file; none: there is no index
};
HuggingFaceFiles hugging_face_files(const std::string& path);

// Adds what a file of the folder holds. An error if it is no safetensors file, or has a tensor that another one has.
void add_hugging_face_file(CheckpointIndex& index, const std::string& folder, const std::string& name);

// Where the index of the files and the tensors in them differ, a line for each. Files that are not in `index` are left
// out.
std::vector<std::string> problems_of_map(const HuggingFaceFiles& files, const CheckpointIndex& index);

// What the files hold, as if it were a checkpoint: every tensor in one piece. `folder` gets where the files are.
CheckpointIndex read_hugging_face(const std::string& path, std::string* folder);

}  // namespace intarsia::checkpoint
