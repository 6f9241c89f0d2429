#pragma once
// Files of others: a safetensors file, or a folder of them as Hugging Face lays it out. They have no checksums and no boxes.

#include <string>

#include "intarsia/checkpoint/index.h"

namespace intarsia::checkpoint {

constexpr const char* kForeignFile = "model.safetensors";
constexpr const char* kForeignIndex = "model.safetensors.index.json";

// Whether `path` is a safetensors file, or a folder with one of the two above.
bool is_foreign(const std::string& path);

// What the files hold, as if it were a checkpoint: every tensor in one piece. `folder` gets where the files are.
CheckpointIndex read_foreign(const std::string& path, std::string* folder);

}  // namespace intarsia::checkpoint
