#include "intarsia/debug/explain_text.h"

#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Layout.h>

#include "intarsia/dispatch/op.h"

namespace intarsia {
namespace {

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> names = {{"float", at::kFloat},
                                                              {"float32", at::kFloat},
                                                              {"double", at::kDouble},
                                                              {"float64", at::kDouble},
                                                              {"half", at::kHalf},
                                                              {"float16", at::kHalf},
                                                              {"bfloat16", at::kBFloat16},
                                                              {"long", at::kLong},
                                                              {"int64", at::kLong},
                                                              {"int", at::kInt},
                                                              {"int32", at::kInt},
                                                              {"short", at::kShort},
                                                              {"int16", at::kShort},
                                                              {"char", at::kChar},
                                                              {"int8", at::kChar},
                                                              {"byte", at::kByte},
                                                              {"uint8", at::kByte},
                                                              {"bool", at::kBool},
                                                              {"cfloat", at::kComplexFloat},
                                                              {"complex64", at::kComplexFloat},
                                                              {"cdouble", at::kComplexDouble},
                                                              {"complex128", at::kComplexDouble}};
  return names;
}

std::string trimmed(const std::string& text) {
  auto first = text.find_first_not_of(' '), last = text.find_last_not_of(' ');
  return first == text.npos ? "" : text.substr(first, last - first + 1);
}

// Takes the dtype from the end of a text, if it ends with one. A word that is no dtype stays: it is read as a
// placement.
at::ScalarType take_dtype(std::string& text) {
  auto space = text.find_last_of(' ');
  auto word = space == text.npos ? text : text.substr(space + 1);
  auto known = dtypes().find(word);
  if (known == dtypes().end()) return at::kFloat;
  text = space == text.npos ? "" : trimmed(text.substr(0, space));
  return known->second;
}

std::vector<std::string> parts_of(const std::string& text, char open, char close) {
  auto inside = trimmed(text);
  if (!inside.empty() && inside.front() == open && inside.back() == close) inside = inside.substr(1, inside.size() - 2);
  std::vector<std::string> parts;
  std::stringstream stream(inside);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  }
  return parts;
}

// One value of a type that a schema names; none if the text is no such value.
std::optional<c10::IValue> read_value(const std::string& text, const c10::Type& type);

template <class Number>
std::optional<Number> read_number(const std::string& text) {
  try {
    size_t end = 0;
    Number number{};
    if constexpr (std::is_floating_point_v<Number>) {
      number = std::stod(text, &end);
    } else {
      number = std::stoll(text, &end);
    }
    return end == text.size() && end > 0 ? std::optional(number) : std::nullopt;
  } catch (const std::logic_error&) {
    return std::nullopt;
  }
}

std::optional<bool> read_bool(const std::string& text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  return std::nullopt;
}

template <class Value>
std::optional<c10::IValue> as_value(const std::optional<Value>& value) {
  return value ? std::optional<c10::IValue>(*value) : std::nullopt;
}

std::optional<c10::IValue> read_list(const std::string& text, const c10::TypePtr& element) {
  c10::impl::GenericList list(element);
  for (auto& part : parts_of(text, '[', ']')) {
    auto value = read_value(part, *element);
    if (!value) return std::nullopt;
    list.push_back(*value);
  }
  return c10::IValue(list);
}

std::optional<c10::IValue> read_value(const std::string& text, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: return as_value(read_number<int64_t>(text));
    case c10::TypeKind::FloatType: return as_value(read_number<double>(text));
    case c10::TypeKind::BoolType: return as_value(read_bool(text));
    case c10::TypeKind::StringType: return c10::IValue(text);
    case c10::TypeKind::DeviceObjType: return c10::IValue(c10::Device(text));
    case c10::TypeKind::LayoutType: return text == "strided" ? std::optional<c10::IValue>(at::kStrided) : std::nullopt;
    case c10::TypeKind::NumberType:
      if (auto whole = read_number<int64_t>(text)) return c10::IValue(*whole);
      if (auto truth = read_bool(text)) return c10::IValue(*truth);
      return as_value(read_number<double>(text));
    case c10::TypeKind::ScalarTypeType: {
      auto known = dtypes().find(text);
      return known == dtypes().end() ? std::nullopt : std::optional<c10::IValue>(known->second);
    }
    case c10::TypeKind::OptionalType:
      if (text == "none" || text == "None") return c10::IValue();
      return read_value(text, *type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: return read_list(text, type.castRaw<c10::ListType>()->getElementType());
    default: return text == "none" || text == "None" ? std::optional<c10::IValue>(c10::IValue()) : std::nullopt;
  }
}

bool is_tensor(const c10::Argument& argument) { return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor()); }

// A number in the place of several, as in kernel_size=2.
std::string repeated(const std::string& text, const c10::Argument& argument) {
  if (!argument.N() || text.find_first_of("[,") != text.npos || text == "none" || text == "None") return text;
  std::string all = text;
  for (int i = 1; i < *argument.N(); ++i) all += "," + text;
  return all;
}

}  // namespace

Imagined parse_imagined(std::string_view text) {
  Imagined result;
  if (text == "none") return result.defined = false, result;
  auto open = text.find('['), close = text.find(']');
  TORCH_CHECK_VALUE(open != text.npos && close != text.npos && open < close, "[explain] cannot read the tensor \"",
                    text, "\". Write its shape, placements and dtype, as in \"[8, 12] S(0), R\" or \"[8] S(0) long\".");
  for (auto& part : parts_of(std::string(text.substr(open, close + 1 - open)), '[', ']')) {
    auto extent = read_number<int64_t>(part);
    TORCH_CHECK_VALUE(extent && *extent >= 0, "[explain] cannot read the extent \"", part, "\" of \"", text, "\".");
    result.shape.push_back(*extent);
  }
  auto rest = trimmed(std::string(text.substr(close + 1)));
  result.dtype = take_dtype(rest);
  if (!rest.empty()) result.placements = parse_placements(rest[0] == '[' ? rest : "[" + rest + "]");
  return result;
}

ExplainedCall parse_call(const std::string& op, const std::vector<std::string>& tensors,
                         const std::map<std::string, std::string>& named) {
  auto schema = op_to_explain(op).schema();
  ExplainedCall call;
  auto given = tensors.begin();
  for (auto& argument : schema.arguments()) {
    auto text = named.find(argument.name());
    bool list = argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
    if (is_tensor(argument)) {
      if (text != named.end()) {
        call.tensors.push_back(parse_imagined(text->second));
      } else if (given != tensors.end()) {
        call.tensors.push_back(parse_imagined(*given++));
      } else {
        call.tensors.push_back(parse_imagined("none"));
      }
    } else if (list) {
      while (given != tensors.end()) call.tensors.push_back(parse_imagined(*given++));
    } else if (text != named.end()) {
      auto value = read_value(repeated(text->second, argument), *argument.real_type());
      TORCH_CHECK_VALUE(value, "[explain] cannot read ", argument.name(), "=", text->second, " as ",
                        argument.real_type()->str(), ". The schema is ", schema);
      call.arguments[argument.name()] = *value;
    }
  }
  while (given != tensors.end()) call.tensors.push_back(parse_imagined(*given++));  // too many: an error of explain
  while (!call.tensors.empty() && !call.tensors.back().defined) call.tensors.pop_back();
  for (auto& [name, text] : named) {
    auto is_named = [&name = name](auto& argument) { return argument.name() == name; };
    TORCH_CHECK_VALUE(std::any_of(schema.arguments().begin(), schema.arguments().end(), is_named), "[explain] ", op,
                      " has no argument \"", name, "\". The schema is ", schema);
  }
  return call;
}

}  // namespace intarsia
