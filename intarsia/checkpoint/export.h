#pragma once
// Writes files for others: a folder as Hugging Face lays it out.

#include <string>

#include "intarsia/checkpoint/items.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

struct ExportOptions {
  int64_t file_bytes = int64_t{5} << 30;  // the most of one file, unless a single tensor has more
  Rename rename;                          // from a name in the program to the one in the files
  ProgressFn progress;
  bool quiet = false;
};

// Writes model.safetensors, or several files and model.safetensors.index.json, into the folder `path`. Every tensor is whole in its
// file, and on no rank: each rank writes the boxes that it owns to their places. All ranks of the current world call it together,
// and see the same files. There or not, as checkpoints are; numbers and texts have no place there and are an error.
void export_full(const std::string& path, const Items& items, const ExportOptions& options = {});

}  // namespace intarsia::checkpoint
