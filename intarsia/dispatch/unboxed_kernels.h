#pragma once
// The kernel template of ops that take unboxed arguments. Included by the files that list its ops.

#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/boxing/KernelFunction.h>

#include "intarsia/dispatch/direct.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/dispatch/watch.h"

namespace intarsia {

// Note [Unboxed kernels]
// The boxed kernel gets its arguments as IValues, and each list among them as a list of IValues: boxing those of a
// convolution costs more than all the rest. The ops of every training step have kernels that make the key from unboxed
// arguments, and pass these on; only calls that are not direct are boxed.

namespace unboxed {

template <class Argument>
concept Tensors = std::is_same_v<Argument, at::TensorList> || std::is_same_v<Argument, at::ITensorListRef>;

template <class Argument>
concept Number = std::is_same_v<Argument, at::Scalar> || std::is_same_v<Argument, double>;

template <class Argument>
struct Inner {
  using type = void;
};
template <class Value>
struct Inner<std::optional<Value>> {
  using type = Value;
};

template <class Argument>
bool admits(DirectCall& call, const Argument& argument) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) return call.admits(argument);
  if constexpr (std::is_same_v<Argument, std::optional<at::Tensor>>) return !argument || call.admits(*argument);
  if constexpr (Tensors<Argument>) {
    for (const at::Tensor& tensor : argument) {
      if (!call.admits(tensor)) return false;
    }
  }
  return true;
}

template <class Argument>
auto local(DirectCall& call, const Argument& argument, int arg) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) {
    return call.next_local(argument);
  } else if constexpr (std::is_same_v<Argument, std::optional<at::Tensor>>) {
    auto tensor = call.next_local(argument ? *argument : at::Tensor());
    return tensor.defined() ? std::optional(std::move(tensor)) : std::nullopt;
  } else if constexpr (Tensors<Argument>) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(argument.size());
    for (const at::Tensor& tensor : argument) tensors.push_back(call.next_local(tensor));
    return tensors;
  } else if constexpr (std::is_same_v<Argument, c10::SymIntArrayRef>) {
    return call.local_sizes(argument, arg);
  } else if constexpr (std::is_same_v<Argument, c10::SymInt>) {
    return call.local_size(argument, arg);
  } else {
    if constexpr (Number<Argument>) call.add_number(argument);
    if constexpr (Number<typename Inner<Argument>::type>) {
      if (argument) call.add_number(*argument);
    }
    return argument;
  }
}

inline at::Tensor wrapped(DirectCall& call, at::Tensor&& local) { return call.next_result(std::move(local)); }
inline std::vector<at::Tensor> wrapped(DirectCall& call, std::vector<at::Tensor>&& locals) {
  for (auto& local : locals) local = call.next_result(std::move(local));
  return std::move(locals);
}
template <class... Results>
std::tuple<Results...> wrapped(DirectCall& call, std::tuple<Results...>&& locals) {
  return std::apply([&](auto&... local) { return std::tuple<Results...>{call.next_result(std::move(local))...}; },
                    locals);
}

}  // namespace unboxed

template <class AtenOp, class Schema = typename AtenOp::schema>
struct Unboxed;

template <class AtenOp, class Result, class... Args>
struct Unboxed<AtenOp, Result(Args...)> {
  static Result run(Args... args) {
    static const auto* op = new Op(c10::Dispatcher::singleton().findSchemaOrThrow(AtenOp::name, AtenOp::overload_name));
    bool all_keys = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Conjugate);
    CallKey key;
    Found found;
    DirectCall call(*op);
    if (C10_LIKELY(!OpWatch::open() && all_keys) && (unboxed::admits(call, args) && ...) &&
        (keys::push(key, args) && ...)) {
      found = {&key, op->cache.find(key)};
      if (C10_LIKELY(call.follows(found.decision.get()))) {
        return run_locally(call, std::index_sequence_for<Args...>(), args...);
      }
    }
    return run_boxed(*op, std::move(found), args...);
  }

 private:
  // A separate function, so that the fast path has a small frame.
  C10_NOINLINE static Result run_boxed(const Op& op, Found found, Args... args) {
    auto stack = c10::impl::boxArgs<Args...>(args...);
    run_op(op, stack, std::move(found));
    return c10::impl::PopResult<Result>::call(stack);
  }

  template <size_t... index>
  static Result run_locally(DirectCall& call, std::index_sequence<index...>, const Args&... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(kAboveKernels);
    std::tuple<decltype(unboxed::local(call, args, 0))...> locals{
        unboxed::local(call, args, index)...};  // in this order
    return unboxed::wrapped(call, std::apply(
                                      [&](auto&... local) {
                                        return call.goes_to_cpu() ? AtenOp::redispatch(kCpu, local...)
                                                                  : AtenOp::call(local...);
                                      },
                                      locals));
  }
};

}  // namespace intarsia
