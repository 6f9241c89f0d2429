#pragma once
// Writes a rank's boxes into a safetensors file.

#include <string>

#include "intarsia/checkpoint/pieces.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

// Writes the file `name` in `folder`, syncs it to the disk, and returns its part of the index: one file, and the pieces
// of every tensor in it. A rank that owns nothing writes no file.
CheckpointIndex write_part(const std::string& folder, const std::string& name, const OwnedPart& part,
                           const std::map<std::string, IndexedTensor>& forms, Progress& progress);

int64_t bytes_of(const OwnedPart& part);

}  // namespace intarsia::checkpoint
