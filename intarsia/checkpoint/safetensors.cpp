#include "intarsia/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "intarsia/checkpoint/checksum.h"

namespace intarsia::checkpoint {
namespace {

using c10::ScalarType;
using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kPage = 4096, kPaged = 1 << 20;
constexpr int64_t kMostHeader = 100'000'000;  // the limit of the format

struct DtypeName {
  ScalarType dtype;
  const char* name;
};
constexpr DtypeName kDtypeNames[] = {
    {ScalarType::Bool, "BOOL"},
    {ScalarType::Byte, "U8"},
    {ScalarType::Char, "I8"},
    {ScalarType::Short, "I16"},
    {ScalarType::UInt16, "U16"},
    {ScalarType::Int, "I32"},
    {ScalarType::UInt32, "U32"},
    {ScalarType::Long, "I64"},
    {ScalarType::UInt64, "U64"},
    {ScalarType::Half, "F16"},
    {ScalarType::BFloat16, "BF16"},
    {ScalarType::Float, "F32"},
    {ScalarType::Double, "F64"},
    {ScalarType::ComplexFloat, "C64"},
    {ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {ScalarType::Float8_e5m2, "F8_E5M2"},
};

// An integer that is not negative and fits.
int64_t number_in(const json& value) {
  TORCH_CHECK(value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX) &&
                  value.get<int64_t>() >= 0,
              "it has ", value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 40),
              " where a size should be");
  return value.get<int64_t>();
}

StoredTensor tensor_in(const std::string& name, const json& entry, int64_t data_begin, int64_t data_bytes) {
  TORCH_CHECK(entry.is_object() && entry.contains("dtype") && entry.contains("shape") && entry.contains("data_offsets"),
              "the entry \"", name, "\" lacks its dtype, shape or data_offsets");
  auto &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  TORCH_CHECK(dtype.is_string() && shape.is_array() && offsets.is_array() && offsets.size() == 2, "the entry \"", name,
              "\" has a dtype, shape or data_offsets of a wrong kind");
  StoredTensor tensor{name, dtype_named(dtype.get<std::string>()), {}, 0, 0};
  for (auto& extent : shape) tensor.shape.push_back(number_in(extent));
  auto begin = number_in(offsets[0]), end = number_in(offsets[1]);
  tensor.bytes = checked_bytes(tensor.shape, tensor.dtype);
  TORCH_CHECK(begin <= end && end <= data_bytes, "the tensor \"", name, "\" is at bytes ", begin, " to ", end,
              ", but only ", data_bytes, " follow the header");
  TORCH_CHECK(end - begin == tensor.bytes, "the tensor \"", name, "\" has ", end - begin,
              " bytes, but its dtype and shape ask for ", tensor.bytes);
  tensor.offset = data_begin + begin;
  return tensor;
}

// The format requires that every byte belongs to exactly one tensor.
void check_no_gaps(const std::vector<StoredTensor>& tensors, int64_t begin, int64_t end) {
  for (auto& tensor : tensors) {
    TORCH_CHECK(tensor.offset == begin, "the tensor \"", tensor.name, "\" begins at byte ", tensor.offset,
                " of the file, but the one before it ends at ", begin);
    begin += tensor.bytes;
  }
  TORCH_CHECK(begin == end, "the file has ", end, " bytes, but its tensors end at ", begin);
}

int64_t header_length(const char* bytes, int64_t file_size) {
  uint64_t length;
  std::memcpy(&length, bytes, sizeof length);
  TORCH_CHECK(length <= static_cast<uint64_t>(std::min(kMostHeader, file_size - kLengthBytes)),
              "its header should have ", length, " bytes, but the file has ", file_size);
  return length;
}

}  // namespace

std::string dtype_name(ScalarType dtype) {
  for (auto& entry : kDtypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  TORCH_CHECK_TYPE(false, "the format safetensors has no name for ", c10::toString(dtype));
}

ScalarType dtype_named(const std::string& name) {
  for (auto& entry : kDtypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  TORCH_CHECK(false, "there is no dtype \"", name.substr(0, 40), "\"");
}

int64_t checked_count(c10::ArrayRef<int64_t> shape) {
  int64_t count = 1;
  for (auto extent : shape) {
    TORCH_CHECK(extent >= 0 && !__builtin_mul_overflow(count, extent, &count), "the shape ", shape, " is impossible");
  }
  return count;
}

int64_t checked_bytes(c10::ArrayRef<int64_t> shape, ScalarType dtype) {
  int64_t bytes;
  TORCH_CHECK(!__builtin_mul_overflow(checked_count(shape), static_cast<int64_t>(c10::elementSize(dtype)), &bytes),
              "the shape ", shape, " is impossible");
  return bytes;
}

StoredHeader parse_header(std::string_view bytes, int64_t file_size) {
  TORCH_CHECK(static_cast<int64_t>(bytes.size()) >= kLengthBytes, "it has no header: it has ", bytes.size(), " bytes");
  StoredHeader header;
  header.length = kLengthBytes + header_length(bytes.data(), file_size);
  TORCH_CHECK(header.length <= static_cast<int64_t>(bytes.size()), "its header ends early");
  bytes = bytes.substr(0, header.length);
  header.checksum = checksum_of(bytes.data(), bytes.size());
  auto entries = json::parse(bytes.begin() + kLengthBytes, bytes.end(), nullptr, false);
  TORCH_CHECK(entries.is_object(), "its header is not JSON of the format safetensors");
  for (auto& [name, entry] : entries.items()) {
    if (name == kMetadataName) {
      TORCH_CHECK(entry.is_object(), "its metadata is not a dict");
      for (auto& [key, value] : entry.items()) {
        TORCH_CHECK(value.is_string(), "its metadata is not a dict of texts");
        header.metadata[key] = value.get<std::string>();
      }
      continue;
    }
    header.tensors.push_back(tensor_in(name, entry, header.length, file_size - header.length));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](auto& a, auto& b) { return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes); });
  check_no_gaps(header.tensors, header.length, file_size);
  return header;
}

StoredHeader read_header(const OpenFile& file) {
  try {
    auto size = file.size();
    TORCH_CHECK(size >= kLengthBytes, "it has only ", size, " bytes");
    std::string bytes(kLengthBytes, '\0');
    file.read(bytes.data(), kLengthBytes, 0);
    bytes.resize(kLengthBytes + header_length(bytes.data(), size));
    file.read(bytes.data() + kLengthBytes, bytes.size() - kLengthBytes, kLengthBytes);
    return parse_header(bytes, size);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, file.path(), " is no safetensors file: ", error.what_without_backtrace());
  }
}

std::string header_for(std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
  if (!metadata.empty()) entries[kMetadataName] = metadata;
  int64_t offset = 0;
  for (auto& tensor : tensors) {
    TORCH_CHECK_VALUE(!entries.contains(tensor.name) && tensor.name != kMetadataName,
                      "a file cannot hold a tensor called \"", tensor.name, "\"",
                      tensor.name == kMetadataName ? ": the format safetensors keeps this name" : " twice");
    tensor.bytes = checked_bytes(tensor.shape, tensor.dtype);
    tensor.offset = offset;
    entries[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                            {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                            {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text;
  try {
    text = entries.dump();
  } catch (const json::exception&) {
    TORCH_CHECK_VALUE(false, "a name is not UTF-8");
  }
  // Tensors begin at a multiple of 8; those of a large file at a page boundary, which is faster to read.
  int64_t alignment = offset >= kPaged ? kPage : kLengthBytes, length = kLengthBytes + text.size();
  text.resize((length + alignment - 1) / alignment * alignment - kLengthBytes, ' ');
  TORCH_CHECK(static_cast<int64_t>(text.size()) <= kMostHeader, "a header of ", text.size(),
              " bytes is more than the format allows");
  uint64_t text_bytes = text.size();
  std::string bytes(reinterpret_cast<const char*>(&text_bytes), kLengthBytes);
  bytes += text;
  for (auto& tensor : tensors) tensor.offset += bytes.size();
  return bytes;
}

}  // namespace intarsia::checkpoint
