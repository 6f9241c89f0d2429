#pragma once
// The key of a call: everything that its decision may depend on, as numbers.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>

namespace intarsia {

struct Op;

// Compared in full: a hash alone could mistake one call for another.
using CallKey = c10::SmallVector<int64_t, 48>;

// Makes the key of a call from its boxed arguments. False if one of them cannot be part of a key: then nothing is
// cached.
bool make_key(const Op& op, c10::ArrayRef<c10::IValue> args, CallKey& key);

// The same, argument by argument with their C++ types: it writes the same numbers as make_key.
namespace keys {

constexpr int64_t kUndefined = -1, kNone = -4, kEnd = -5, kPlain = -6;

bool push(CallKey& key, const at::Tensor& tensor);

// Numbers enter by type only: the type decides promotion, the value decides nothing.
bool push(CallKey& key, const at::Scalar& number);
inline bool push(CallKey& key, double) { return push(key, at::Scalar(0.0)); }

template <class Value>
  requires std::is_integral_v<Value> || std::is_enum_v<Value>
bool push(CallKey& key, Value value) {
  return key.push_back(static_cast<int64_t>(value)), true;
}

// The length comes before the items, which may be any numbers, so that lists cannot run into each other.
template <class Items>
bool push_items(CallKey& key, const Items& items) {
  key.push_back(items.size());
  for (auto item : items) key.push_back(item);
  return true;
}
inline bool push(CallKey& key, at::IntArrayRef values) { return push_items(key, values); }
template <size_t n>
bool push(CallKey& key, std::array<bool, n> values) {
  return push_items(key, values);
}

inline bool push(CallKey& key, const c10::SymInt& value) {
  auto known = value.maybe_as_int();
  return known && push(key, *known);
}
inline bool push(CallKey& key, c10::SymIntArrayRef values) {
  auto known = c10::asIntArrayRefSlowOpt(values);
  return known && push(key, *known);
}

inline bool push(CallKey& key, std::string_view text) {
  for (auto c : text) key.push_back(c);
  return push(key, kEnd);
}

template <class Tensors>
  requires std::is_same_v<Tensors, at::TensorList> || std::is_same_v<Tensors, at::ITensorListRef>
bool push(CallKey& key, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) push(key, tensor);
  return push(key, kEnd);
}

inline bool push(CallKey& key, const std::optional<at::Tensor>& tensor) {
  return tensor ? push(key, *tensor) : push(key, kUndefined);
}
template <class Value>
bool push(CallKey& key, const std::optional<Value>& value) {
  return value ? push(key, *value) : push(key, kNone);
}
template <class Value>
bool push(CallKey& key, const c10::OptionalArrayRef<Value>& values) {
  return values ? push(key, *values) : push(key, kNone);
}

}  // namespace keys

}  // namespace intarsia
