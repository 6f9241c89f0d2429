#pragma once
// Reads Hugging Face's format: a safetensors file, or a folder of them with an index. These have no checksums, and only
// whole tensors.

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

// Files that belong together, and what their index says about them.
struct HuggingFaceFiles {
  std::string folder;
  std::vector<std::string> names;
  std::optional<std::map<std::string, std::string>> map;  // from a tensor to its file; none: there is no index
};
HuggingFaceFiles hugging_face_files(const std::string& path);

// Adds the contents of a file of the folder. An error if it is not a safetensors file, or has a tensor that another one
// has.
void add_hugging_face_file(CheckpointIndex& index, const std::string& folder, const std::string& name);

// Differences between the index of the files and the tensors in them, a line for each. Files that are not in `index`
// are ignored.
std::vector<std::string> problems_of_map(const HuggingFaceFiles& files, const CheckpointIndex& index);

// The contents of the files, as if they were a checkpoint: every tensor in one piece. Sets `folder` to the folder of
// the files.
CheckpointIndex read_hugging_face(const std::string& path, std::string* folder);

}  // namespace intarsia::checkpoint
