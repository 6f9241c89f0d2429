#include "intarsia/checkpoint/index.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "intarsia/checkpoint/checksum.h"

namespace intarsia::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "intarsia checkpoint 1";
constexpr const char* kFirstLine = "{\"checksum\":\"";
constexpr int64_t kMostIndex = int64_t{1} << 32;

[[noreturn]] void bad_index(const std::string& why) { TORCH_CHECK(false, "it is damaged: ", why); }

const json& member_of(const json& object, const char* name) {
  auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) bad_index(c10::str("\"", name, "\" is missing"));
  return *found;
}

template <class T>
T read_as(const json& object, const char* name) {
  try {
    return member_of(object, name).get<T>();
  } catch (const json::exception& error) {
    bad_index(c10::str("\"", name, "\": ", error.what()));
  }
}

int64_t size_in(const json& object, const char* name) {
  auto& value = member_of(object, name);
  bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX) &&
              value.get<int64_t>() >= 0;
  if (!fits) bad_index(c10::str("\"", name, "\" is no size"));
  return value.get<int64_t>();
}

c10::DimVector sizes_in(const json& object, const char* name) {
  c10::DimVector sizes;
  auto& list = member_of(object, name);
  if (!list.is_array()) bad_index(c10::str("\"", name, "\" is no list"));
  for (auto& value : list) sizes.push_back(size_in({{"size", value}}, "size"));
  return sizes;
}

std::vector<int64_t> as_list(c10::ArrayRef<int64_t> sizes) { return sizes.vec(); }

uint64_t checksum_in(const std::string& text) {
  uint64_t value = 0;
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    bad_index("a checksum has another form");
  for (char digit : text) value = value << 4 | (digit <= '9' ? digit - '0' : digit - 'a' + 10);
  return value;
}

// JSON has no infinity and no NaN, and does not distinguish 1 from 1.0.
json to_json(const Value& value) {
  if (auto* number = std::get_if<double>(&value)) {
    if (std::isfinite(*number)) return {{"number", *number}};
    return {{"number", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
  }
  if (auto* flag = std::get_if<bool>(&value)) return {{"flag", *flag}};
  if (auto* whole = std::get_if<int64_t>(&value)) return {{"integer", *whole}};
  return {{"text", std::get<std::string>(value)}};
}

Value value_in(const std::string& name, const json& entry) {
  if (!entry.is_object() || entry.size() != 1) bad_index("the value \"" + name + "\" has another form");
  auto& kind = entry.begin().key();
  auto& value = entry.begin().value();
  if (kind == "flag" && value.is_boolean()) return value.get<bool>();
  if (kind == "text" && value.is_string()) return value.get<std::string>();
  if (kind == "number" && value.is_number_float()) return value.get<double>();
  if (kind == "number" && value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (kind == "number" && value == "inf") return std::numeric_limits<double>::infinity();
  if (kind == "number" && value == "-inf") return -std::numeric_limits<double>::infinity();
  bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (kind == "integer" && fits) return value.get<int64_t>();
  bad_index("the value \"" + name + "\" has another form");
}

json to_json(const StoredPiece& piece) {
  std::vector<std::string> sums;
  for (auto sum : piece.checksums) sums.push_back(checksum_text(sum));
  return {{"file", piece.file},
          {"offset", piece.offset},
          {"begin", as_list(piece.box.begin)},
          {"shape", as_list(piece.box.shape)},
          {"checksums", sums}};
}

StoredPiece piece_in(const json& entry) {
  StoredPiece piece{
      size_in(entry, "file"), size_in(entry, "offset"), {sizes_in(entry, "begin"), sizes_in(entry, "shape")}, {}};
  for (auto& sum : read_as<std::vector<std::string>>(entry, "checksums")) piece.checksums.push_back(checksum_in(sum));
  return piece;
}

// Checks that pieces are within their files and make up their tensor.
void check_pieces(const CheckpointIndex& index, const IndexedTensor& tensor) {
  std::vector<Box> boxes;
  for (auto& piece : tensor.pieces) {
    if (piece.box.begin.size() != tensor.shape.size() || piece.box.shape.size() != tensor.shape.size())
      bad_index("a piece has other dims");
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (piece.box.begin[dim] > tensor.shape[dim] || piece.box.shape[dim] > tensor.shape[dim] - piece.box.begin[dim])
        bad_index("a piece is outside");
    }
    auto bytes = checked_bytes(piece.box.shape, tensor.dtype);
    if (piece.file >= static_cast<int64_t>(index.files.size())) bad_index("a piece is in a file that is not listed");
    auto& file = index.files[piece.file];
    if (bytes > file.bytes || piece.offset > file.bytes - bytes) bad_index("a piece is outside of its file");
    if (static_cast<int64_t>(piece.checksums.size()) != block_count(bytes))
      bad_index("a piece has another number of checksums");
    boxes.push_back(piece.box);
  }
  if (!make_up(whole_box(tensor.shape), boxes)) bad_index("the pieces do not make up the tensor");
}

json to_json(const CheckpointIndex& index) {
  json files = json::array(), tensors = json::object(), values = json::object();
  for (auto& file : index.files) {
    files.push_back({{"name", file.name},
                     {"rank", file.rank},
                     {"bytes", file.bytes},
                     {"header", checksum_text(file.header_checksum)}});
  }
  for (auto& [name, tensor] : index.tensors) {
    json pieces = json::array();
    for (auto& piece : tensor.pieces) pieces.push_back(to_json(piece));
    tensors[name] = {{"dtype", dtype_name(tensor.dtype)},
                     {"shape", as_list(tensor.shape)},
                     {"layout", tensor.layout},
                     {"pieces", pieces}};
  }
  for (auto& [name, value] : index.values) values[name] = to_json(value);
  return {{"format", kFormat},    {"id", index.id}, {"sequence", index.sequence},
          {"ranks", index.ranks}, {"files", files}, {"tensors", tensors},
          {"values", values}};
}

CheckpointIndex index_in(const json& document) {
  auto format = read_as<std::string>(document, "format");
  TORCH_CHECK(format == kFormat, "it is of the format \"", format.substr(0, 60), "\", and this program reads \"",
              kFormat, "\"");
  CheckpointIndex index{
      read_as<std::string>(document, "id"), size_in(document, "sequence"), size_in(document, "ranks"), {}, {}, {}};
  for (auto& file : member_of(document, "files")) {
    index.files.push_back({read_as<std::string>(file, "name"), size_in(file, "rank"), size_in(file, "bytes"),
                           checksum_in(read_as<std::string>(file, "header"))});
    auto& name = index.files.back().name;
    if (name.empty() || name.find('/') != std::string::npos || name[0] == '.')
      bad_index("a file has a name that leaves the folder");
  }
  for (auto& [name, entry] : member_of(document, "tensors").items()) {
    auto& tensor = index.tensors[name] = {dtype_named(read_as<std::string>(entry, "dtype")),
                                          sizes_in(entry, "shape"),
                                          read_as<std::string>(entry, "layout"),
                                          {}};
    checked_bytes(tensor.shape, tensor.dtype);
    for (auto& piece : member_of(entry, "pieces")) tensor.pieces.push_back(piece_in(piece));
  }
  for (auto& [name, value] : member_of(document, "values").items()) index.values[name] = value_in(name, value);
  return index;
}

std::string dumped(const json& document) {
  try {
    return document.dump();
  } catch (const json::exception&) {
    TORCH_CHECK_VALUE(false, "a name or a text is not UTF-8");
  }
}

}  // namespace

std::string str(const Value& value) {
  if (auto* text = std::get_if<std::string>(&value)) return "\"" + *text + "\"";
  if (auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  return c10::str(std::get<double>(value));
}

std::string IndexedTensor::form() const { return dtype_name(dtype) + " " + c10::str(c10::IntArrayRef(shape)); }

std::string part_text(const CheckpointIndex& part) { return dumped(to_json(part)); }

CheckpointIndex parse_part(const std::string& text) {
  auto document = json::parse(text, nullptr, false);
  if (!document.is_object()) bad_index("it is no JSON");
  return index_in(document);
}

std::string index_text(const CheckpointIndex& index) {
  auto rest = part_text(index).substr(1) + "\n";  // without its brace, which is in the first line
  return kFirstLine + checksum_text(checksum_of(rest.data(), rest.size())) + "\",\n" + rest;
}

CheckpointIndex parse_index(const std::string& text) {
  auto begin = std::string_view(kFirstLine).size() + 16 + 3;
  if (text.size() <= begin || text.compare(0, std::string_view(kFirstLine).size(), kFirstLine) != 0)
    bad_index("it does not begin with a checksum");
  auto rest = std::string_view(text).substr(begin);
  auto line = kFirstLine + checksum_text(checksum_of(rest.data(), rest.size())) + "\",\n";
  if (text.compare(0, begin, line) != 0) bad_index("its checksum does not fit");
  auto index = parse_part(text);
  for (auto& [name, tensor] : index.tensors) {
    try {
      check_pieces(index, tensor);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "tensor \"", name, "\": ", error.what_without_backtrace());
    }
  }
  return index;
}

CheckpointIndex read_index(const std::string& folder) {
  auto path = folder + "/" + kIndexName;
  TORCH_CHECK(path_exists(path), folder, " is no complete checkpoint: it has no ", kIndexName);
  try {
    return parse_index(read_text(path, kMostIndex));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "the index ", path, ": ", error.what_without_backtrace());
  }
}

}  // namespace intarsia::checkpoint
