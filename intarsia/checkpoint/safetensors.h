#pragma once
// The safetensors file format: eight bytes with the length of a header, the header in JSON, then the tensors one after
// the other, each row-major and little-endian.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include "intarsia/checkpoint/files.h"

namespace intarsia::checkpoint {

constexpr const char* kMetadataName = "__metadata__";  // in a header; no tensor can have this name

// The byte range of a tensor in a file.
struct StoredTensor {
  std::string name;
  c10::ScalarType dtype;
  c10::DimVector shape;
  int64_t offset;  // from the beginning of the file
  int64_t bytes;
};

// F32, BF16, I64, ...; a dtype without a name in the format is an error.
std::string dtype_name(c10::ScalarType dtype);
c10::ScalarType dtype_named(const std::string& name);

// The number of elements, or of bytes of elements of `dtype`. A negative extent and a number that overflows are errors.
int64_t checked_count(c10::ArrayRef<int64_t> shape);
int64_t checked_bytes(c10::ArrayRef<int64_t> shape, c10::ScalarType dtype);

// The tensors of a file, in the order of their offsets. Everything is checked against the size of the file, and no
// allocation is larger than that.
struct StoredHeader {
  int64_t length;  // of everything before the first tensor
  uint64_t checksum;
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};
StoredHeader read_header(const OpenFile& file);
// The same for a string: all bytes before the first tensor, of a file of `file_size` bytes.
StoredHeader parse_header(std::string_view bytes, int64_t file_size);

// The bytes before the first tensor, for tensors in this order. Sets their offsets.
std::string header_for(std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace intarsia::checkpoint
