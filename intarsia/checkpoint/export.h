#pragma once
// Writes checkpoints in Hugging Face's format: a folder of safetensors files with an index.

#include <string>

#include "intarsia/checkpoint/items.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

struct ExportOptions {
  int64_t file_bytes = int64_t{5} << 30;  // the limit of one file, unless a single tensor has more
  Rename rename;                          // from a name in the program to the one in the files
  ProgressFn progress;
  bool quiet = false;
  bool replace = false;  // a folder with files that an export does not write may be replaced
};

// Writes model.safetensors, or several files and model.safetensors.index.json, into the folder `path`. Every tensor is
// whole in its file, but on no rank: each rank writes the boxes that it owns. All ranks of the current world call it
// together, and see the same files. Atomic, as checkpoints are; the format cannot hold numbers and texts, which are an
// error.
void export_full(const std::string& path, const Items& items, const ExportOptions& options = {});

// What export_checkpoint wrote, and what it left out.
struct Exported {
  int64_t files = 0, tensors = 0, bytes = 0;
  int64_t states = 0;  // tensors of optimizers
  int64_t others = 0;  // tensors of other items than the requested one
  int64_t values = 0;  // numbers and texts
};

// The same from a checkpoint, in one process, a part of a tensor at a time: the tensors of the item `item` without its
// name as a prefix, or ("") all but the states of optimizers. Checks what it reads. Anything at `path` is an error
// unless `replace` is set.
Exported export_checkpoint(const std::string& from, const std::string& path, const std::string& item = "",
                           const ExportOptions& options = {});

}  // namespace intarsia::checkpoint
