#pragma once
// What is in a checkpoint, in words, and whether it is still as it was written.

#include <string>
#include <vector>

#include "intarsia/checkpoint/index.h"

namespace intarsia::checkpoint {

// The complete checkpoints of a folder, a line for each: name, size, tensors, ranks.
std::string listing(const std::string& folder);

// Tensors with dtypes, shapes and layouts, values, files with who wrote them, and a picture of who holds what. Of files of Hugging
// Face too. `pictures`: with a line of boxes for every tensor.
std::string description(const std::string& path, bool pictures = true);

// Reads everything, and returns what is wrong: a line for each damaged file or tensor. Empty: all is as it was written.
std::vector<std::string> problems_of(const std::string& path);

// Writes the checkpoint or the files of Hugging Face at `from` once more, as a checkpoint of `files` files at `to`. Checks what it
// reads, and holds no more than one of the new files in memory.
void convert(const std::string& from, const std::string& to, int64_t files);

}  // namespace intarsia::checkpoint
