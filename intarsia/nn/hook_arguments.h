#pragma once
// HookArguments: references to the arguments or results of a forward, of any types, which hooks read and replace.

#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace intarsia {

// A list of references, in the order of the signature. A result that is a tuple, a pair or a vector of tensors appears
// as its elements; void as none.
class HookArguments {
 public:
  size_t size() const { return items_.size(); }
  bool is_tensor(size_t i) const { return is<at::Tensor>(i); }
  at::Tensor& tensor(size_t i) const { return get<at::Tensor>(i); }

  template <class T>
  bool is(size_t i) const {
    return *checked(i).type == typeid(T);
  }
  template <class T>
  T& get(size_t i) const {
    auto& item = checked(i);
    TORCH_CHECK_TYPE(*item.type == typeid(T), "[HookArguments] value ", i, " is a ", c10::demangle(item.type->name()),
                     ", not a ", c10::demangle_type<T>(), ". Ask for the type that forward has there.");
    return *static_cast<T*>(item.address);
  }

  template <class T>
  void add_one(T& value) {
    items_.push_back({&value, &typeid(T)});
  }
  // A tuple, a pair or a vector adds its elements.
  template <class T>
  void add(T& value) {
    add_one(value);
  }
  template <class... T>
  void add(std::tuple<T...>& values) {
    std::apply([&](auto&... value) { (add(value), ...); }, values);
  }
  template <class A, class B>
  void add(std::pair<A, B>& values) {
    add(values.first), add(values.second);
  }
  void add(std::vector<at::Tensor>& values) {
    for (auto& value : values) add(value);
  }

  // The number of values in a result of type R; none if it depends on the result.
  template <class R>
  static std::optional<size_t> count_of() {
    if constexpr (std::is_void_v<R>) {
      return 0;
    } else if constexpr (std::is_same_v<R, std::vector<at::Tensor>>) {
      return std::nullopt;
    } else {
      return Counter<R>::count;
    }
  }

 private:
  template <class R>
  struct Counter {
    static constexpr size_t count = 1;
  };
  template <class... T>
  struct Counter<std::tuple<T...>> {
    static constexpr size_t count = sizeof...(T);
  };
  template <class A, class B>
  struct Counter<std::pair<A, B>> {
    static constexpr size_t count = 2;
  };
  struct Item {
    void* address;
    const std::type_info* type;
  };
  const Item& checked(size_t i) const {
    TORCH_CHECK_INDEX(i < items_.size(), "[HookArguments] there is no value ", i, ": there are ", items_.size(), ".");
    return items_[i];
  }
  std::vector<Item> items_;
};

}  // namespace intarsia
