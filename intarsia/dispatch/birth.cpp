#include "intarsia/dispatch/birth.h"

#include <map>

#include <ATen/ATen.h>

#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

// The arguments of a call, by name.
struct Named {
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> values;

  c10::IValue operator[](const char* name) const {
    auto index = schema.argumentIndexWithName(name);
    return index ? values[*index] : c10::IValue();
  }
  double number(const char* name, double otherwise) const {
    return (*this)[name].isNone() ? otherwise : (*this)[name].toScalar().toDouble();
  }
};

using Fill = void (*)(at::Tensor& tensor, const Named& args, const std::optional<at::Generator>& generator);

// Ops that draw, and what they do to an empty tensor.
Fill fill_of(const std::string& name) {
  static const auto* fills = new std::map<std::string, Fill>{
      {"aten::rand", [](auto& t, auto&, auto& generator) { t.uniform_(0, 1, generator); }},
      {"aten::randn", [](auto& t, auto&, auto& generator) { t.normal_(0, 1, generator); }},
      {"aten::normal",
       [](auto& t, auto& args, auto& generator) { t.normal_(args.number("mean", 0), args.number("std", 1), generator); }},
      {"aten::randint", [](auto& t, auto& args, auto& generator) {
         t.random_(args["low"].isNone() ? 0 : args["low"].toInt(), args["high"].toInt(), generator);
       }}};
  auto found = fills->find(name);
  return found == fills->end() ? nullptr : found->second;
}

bool fills_evenly(const std::string& name) {
  return name == "aten::empty" || name == "aten::zeros" || name == "aten::ones" || name == "aten::full";
}

bool could_be_on(const DeviceMesh& mesh, const Named& args) {
  auto device = args["device"], layout = args["layout"], format = args["memory_format"], names = args["names"];
  return (device.isNone() || device.toDevice().type() == mesh.device_type()) &&
         (layout.isNone() || layout.toLayout() == at::kStrided) &&
         (format.isNone() || format.toMemoryFormat() == at::MemoryFormat::Contiguous) && names.isNone();
}

at::Tensor made_of_parts(const c10::OperatorHandle& op, const Named& args, const Layout& layout, at::IntArrayRef sizes) {
  Shards shards;
  auto dtype = at::typeMetaToScalarType(at::get_default_dtype());
  for (auto& slot : layout.mesh().slots()) {
    std::vector<c10::IValue> local(args.values.begin(), args.values.end());
    auto shape = local_shape(layout, sizes, slot.coordinate);
    local[*args.schema.argumentIndexWithName("size")] = std::vector<int64_t>(shape.begin(), shape.end());
    op.callBoxed(local);
    shards.push_back(local[0].toTensor());
    dtype = shards.back().scalar_type();
  }
  return wrap(std::move(shards), &layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace

bool make_in_parts(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack, const Birthplace& birthplace) {
  auto count = op.schema().arguments().size();
  auto begin = stack.end() - static_cast<int64_t>(count);
  Named args{op.schema(), c10::ArrayRef<c10::IValue>(&*begin, count)};
  auto& name = op.operator_name().name;
  auto fill = fill_of(name);
  if ((!fill && !fills_evenly(name)) || !args["size"].isIntList() || !could_be_on(birthplace.mesh, args)) return false;
  auto sizes = args["size"].toIntVector();
  if (std::any_of(sizes.begin(), sizes.end(), [](auto n) { return n < 0; })) return false;
  auto& layout = *Layout::get(birthplace.mesh, birthplace.placements(sizes));
  at::Tensor made;
  if (fill) {
    auto otherwise = name == "aten::randint" ? at::kLong : at::typeMetaToScalarType(at::get_default_dtype());
    made = empty(sizes, layout.mesh(), layout.placements(), args["dtype"].isNone() ? otherwise : args["dtype"].toScalarType());
    fill(made, args, args["generator"].toOptional<at::Generator>());
  } else {
    made = made_of_parts(op, args, layout, sizes);
  }
  stack.erase(begin, stack.end());
  stack.emplace_back(std::move(made));
  return true;
}

}  // namespace intarsia
