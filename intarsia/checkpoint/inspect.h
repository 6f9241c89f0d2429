#pragma once
// Describes the contents of a checkpoint as text, for `intarsia checkpoint list` and `show`.

#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"

namespace intarsia::checkpoint {

// The complete checkpoints of a folder, a line for each: name, size, tensors, ranks.
std::string listing(const std::string& folder);

// Tensors with dtypes, shapes and layouts, values, files with the ranks that wrote them, and a picture of which file
// holds what. Also for files of Hugging Face. `pictures`: with a line of boxes for every tensor.
std::string description(const std::string& path, bool pictures = true);

// Copies the checkpoint or the files of Hugging Face at `from` to a checkpoint of `files` files at `to`. Checks what it
// reads, and holds at most one of the new files in memory. A checkpoint at `to` is an error, unless `replace` is set.
void convert(const std::string& from, const std::string& to, int64_t files, bool replace = false);

// A number of bytes as a text: 1.6 MB.
std::string bytes_text(int64_t bytes);
int64_t bytes_of_files(const CheckpointIndex& index);

}  // namespace intarsia::checkpoint
