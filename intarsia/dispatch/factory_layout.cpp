#include "intarsia/dispatch/factory_layout.h"

#include <ATen/ATen.h>

#include "intarsia/rules/table.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

const std::vector<TensorForm> kNoForms;

// None for an argument that the op does not have.
c10::IValue arg_of(const OpCall& call, const char* name) {
  auto index = call.arg_index(name);
  return index < 0 ? c10::IValue() : call.args[index];
}

bool could_be_on(const DeviceMesh& mesh, const OpCall& call) {
  auto device = arg_of(call, "device"), layout = arg_of(call, "layout");
  auto format = arg_of(call, "memory_format"), names = arg_of(call, "names");
  return (device.isNone() || device.toDevice().type() == mesh.device_type()) &&
         (layout.isNone() || layout.toLayout() == at::kStrided) &&
         (format.isNone() || format.toMemoryFormat() == at::MemoryFormat::Contiguous) && names.isNone();
}

at::Tensor made_of_parts(const c10::OperatorHandle& op, const OpCall& call, const Layout& layout,
                         at::IntArrayRef sizes) {
  Shards shards;
  auto dtype = at::typeMetaToScalarType(at::get_default_dtype());
  for (auto& slot : layout.mesh().slots()) {
    std::vector<c10::IValue> local(call.args.begin(), call.args.end());
    auto shape = local_shape(layout, sizes, slot.coordinate);
    local[call.arg_index("size")] = std::vector<int64_t>(shape.begin(), shape.end());
    op.callBoxed(local);
    shards.push_back(local[0].toTensor());
    dtype = shards.back().scalar_type();
  }
  return wrap(std::move(shards), &layout, sizes, c10::contiguous_strides(sizes), c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace

bool make_in_parts(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack, const FactoryLayout& place) {
  auto count = op.schema().arguments().size();
  auto begin = stack.end() - static_cast<int64_t>(count);
  OpCall call{op.schema(), c10::ArrayRef<c10::IValue>(&*begin, count), kNoForms, kNoForms};
  auto& factory = rule_table().traits_of(op.operator_name()).factory;
  if (!factory || !arg_of(call, "size").isIntList() || !could_be_on(place.mesh, call)) return false;
  auto sizes = arg_of(call, "size").toIntVector();
  if (std::any_of(sizes.begin(), sizes.end(), [](auto n) { return n < 0; })) return false;
  auto& layout = *Layout::get(place.mesh, place.placements(sizes));
  at::Tensor made;
  if (factory->draw) {
    bool has_own = factory->dtype != c10::ScalarType::Undefined;
    auto otherwise = has_own ? factory->dtype : at::typeMetaToScalarType(at::get_default_dtype());
    auto dtype = arg_of(call, "dtype");
    made = empty(sizes, layout.mesh(), layout.placements(), dtype.isNone() ? otherwise : dtype.toScalarType());
    factory->draw(made, call, arg_of(call, "generator").toOptional<at::Generator>());
  } else {
    made = made_of_parts(op, call, layout, sizes);
  }
  stack.erase(begin, stack.end());
  stack.emplace_back(std::move(made));
  return true;
}

}  // namespace intarsia
