#pragma once
// The index of a checkpoint: its tensors, the files and boxes that hold them, their checksums, and its numbers and
// texts. It is the last file written: a folder without it is not a checkpoint.

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "intarsia/checkpoint/safetensors.h"
#include "intarsia/redistribute/boxes.h"

namespace intarsia::checkpoint {

using Value = std::variant<bool, int64_t, double, std::string>;
using ValueMap = std::map<std::string, Value>;
std::string str(const Value& value);

// A box of a tensor, row-major at `offset` of a file.
struct StoredPiece {
  int64_t file;  // its number in the index
  int64_t offset;
  Box box;
  std::vector<uint64_t> checksums;  // of its blocks; none if unknown (Hugging Face's files)
};

struct IndexedTensor {
  c10::ScalarType dtype;
  c10::DimVector shape;
  std::string layout;  // of the tensor when it was saved, for people
  std::vector<StoredPiece> pieces;
  std::string form() const;  // F32 [8, 4]
};

struct IndexedFile {
  std::string name;  // in the folder of the checkpoint
  int64_t rank;      // that wrote it
  int64_t bytes;
  uint64_t header_checksum;
};

struct CheckpointIndex {
  std::string id;        // of the save that wrote it
  int64_t sequence = 0;  // grows from one checkpoint of a folder to the next
  int64_t ranks = 1;
  std::vector<IndexedFile> files;
  std::map<std::string, IndexedTensor> tensors;
  ValueMap values;
};

constexpr const char* kIndexName = "index.json";

// JSON, whose first line is a checksum of the rest. Parsing checks it, and that pieces fit their tensors and files.
std::string index_text(const CheckpointIndex& index);
CheckpointIndex parse_index(const std::string& text);

// The index of the checkpoint in a folder. Errors name the file.
CheckpointIndex read_index(const std::string& folder);

// What one rank contributes, as a text for the rank that writes the index.
std::string part_text(const CheckpointIndex& part);
CheckpointIndex parse_part(const std::string& text);

}  // namespace intarsia::checkpoint
