#pragma once
// Writes a rank's boxes into a safetensors file.

#include <string>

#include "intarsia/checkpoint/pieces.h"
#include "intarsia/checkpoint/progress.h"

namespace intarsia::checkpoint {

// Writes the file `name` in `folder` and returns when it is on the disk: one file, and of every tensor the pieces in
// it. A rank that owns nothing writes none.
CheckpointIndex write_part(const std::string& folder, const std::string& name, const OwnedPart& part,
                           const std::map<std::string, IndexedTensor>& forms, Progress& progress);

int64_t bytes_of(const OwnedPart& part);

}  // namespace intarsia::checkpoint
