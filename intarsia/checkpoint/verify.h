#pragma once
// Checks a checkpoint, or a folder in Hugging Face's format, for damage.

#include <cstdint>
#include <string>
#include <vector>

namespace intarsia::checkpoint {

// What verify has found. Without problems and with checksums, every byte is as it was written.
struct Verified {
  std::vector<std::string> problems;  // a line for each damaged file or tensor
  bool checksums = false;             // whether the files have checksums; without, damaged values go unnoticed
  bool map = false;                   // whether an index of Hugging Face names the file of every tensor
  int64_t tensors = 0, files = 0, bytes = 0;
};

// Reads everything. Checks the header of every file (JSON, dtypes, shapes against bytes, offsets without gaps, the
// length of the file), and that the index and the files name the same tensors. Compares headers and values with their
// checksums, if there are any: files of Hugging Face have none.
Verified verify(const std::string& path);

// The problems alone.
std::vector<std::string> problems_of(const std::string& path);

// A report as text: what is wrong, or what was checked and what was not.
std::string str(const Verified& verified, const std::string& path);

}  // namespace intarsia::checkpoint
