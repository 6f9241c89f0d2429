#include "intarsia/dispatch/key.h"

#include <cstring>

#include "intarsia/dispatch/op.h"
#include "intarsia/tensor/body.h"

namespace intarsia {
namespace {

bool push_bits(CallKey& key, double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return keys::push(key, bits);
}

bool push_value(CallKey& key, const c10::IValue& value, ArgKind kind) {
  if (value.isNone()) return keys::push(key, keys::kNone);
  if (kind == ArgKind::number) return value.isScalar() && keys::push(key, value.toScalar());
  if (value.isInt()) return keys::push(key, value.toInt());
  if (value.isBool()) return keys::push(key, value.toBool());
  if (value.isIntList()) return keys::push_items(key, value.toIntList());
  if (value.isBoolList()) return keys::push_items(key, value.toBoolList());
  if (value.isDoubleList()) {
    key.push_back(value.toDoubleList().size());
    for (double item : value.toDoubleList()) push_bits(key, item);
    return true;
  }
  if (value.isDouble()) return push_bits(key, value.toDouble());
  if (value.isDevice()) return keys::push(key, value.toDevice().type());
  if (value.isString()) return keys::push(key, std::string_view(value.toStringRef()));
  return false;
}

bool push_tensor(CallKey& key, const c10::IValue& value) {
  return value.isTensor() ? keys::push(key, value.toTensor()) : keys::push(key, keys::kUndefined);
}

}  // namespace

bool keys::push(CallKey& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return push(key, kUndefined);
  auto& impl = *tensor.unsafeGetTensorImpl();
  if (impl.key_set().has(kDTensorKey)) {
    key.push_back(reinterpret_cast<int64_t>(body_of(tensor).layout));
  } else {
    key.push_back(kPlain - impl.is_wrapped_number());
  }
  auto sizes = impl.sizes(), strides = impl.strides();
  key.push_back(static_cast<int64_t>(c10::typeMetaToScalarType(impl.dtype())) |
                static_cast<int64_t>(sizes.size() << 8));
  key.append(sizes.begin(), sizes.end());
  key.append(strides.begin(), strides.end());
  return true;
}

bool keys::push(CallKey& key, const at::Scalar& number) {
  return push(key, number.isIntegral(false) ? 1 : number.isFloatingPoint() ? 2 : number.isBoolean() ? 3 : 4);
}

bool make_key(const Op& op, c10::ArrayRef<c10::IValue> args, CallKey& key) {
  for (size_t i = 0; i < args.size(); ++i) {
    auto& value = args[i];
    if (op.kinds[i] == ArgKind::tensor) {
      push_tensor(key, value);
    } else if (op.kinds[i] != ArgKind::tensor_list) {
      if (!push_value(key, value, op.kinds[i])) return false;
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) keys::push(key, tensor);
      key.push_back(keys::kEnd);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) push_tensor(key, item);
      key.push_back(keys::kEnd);
    }
  }
  return true;
}

}  // namespace intarsia
