#include "intarsia/dispatch/typed.h"

#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/Operators.h>

#include "intarsia/dispatch/direct.h"
#include "intarsia/dispatch/kernel_list.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/dispatch/watch.h"

namespace intarsia {
namespace {

// Note [Typed kernels]
// Ops come to dispatch with their arguments in boxes, and each list among them is a box of boxes: those of a convolution
// cost more than all the rest. The ops of every training step have kernels that make the key from what they are given,
// and hand that on; only calls that are not direct are boxed.

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

at::Tensor wrapped(DirectCall& call, at::Tensor&& local) { return call.next_result(std::move(local)); }
std::vector<at::Tensor> wrapped(DirectCall& call, std::vector<at::Tensor>&& locals) {
  for (auto& local : locals) local = call.next_result(std::move(local));
  return std::move(locals);
}
template <class... Results>
std::tuple<Results...> wrapped(DirectCall& call, std::tuple<Results...>&& locals) {
  return std::apply([&](auto&... local) { return std::tuple<Results...>{call.next_result(std::move(local))...}; }, locals);
}

template <class AtenOp, class Schema = typename AtenOp::schema>
struct Typed;

template <class AtenOp, class Result, class... Args>
struct Typed<AtenOp, Result(Args...)> {
  static Result run(Args... args) {
    static const auto* op = new Op(c10::Dispatcher::singleton().findSchemaOrThrow(AtenOp::name, AtenOp::overload_name));
    bool all_keys = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Conjugate);
    CallKey key;
    Found found;
    DirectCall call(*op);
    if (C10_LIKELY(!OpWatch::open() && all_keys) && (admits(call, args) && ...) && (keys::push(key, args) && ...)) {
      found = {&key, op->cache.find(key)};
      if (C10_LIKELY(call.follows(found.decision.get()))) {
        return run_locally(call, std::index_sequence_for<Args...>(), args...);
      }
    }
    return run_boxed(*op, std::move(found), args...);
  }

 private:
  // Apart, so that the short way has a small frame.
  C10_NOINLINE static Result run_boxed(const Op& op, Found found, Args... args) {
    auto stack = c10::impl::boxArgs<Args...>(args...);
    run_op(op, stack, std::move(found));
    return c10::impl::PopResult<Result>::call(stack);
  }

  template <size_t... index>
  static Result run_locally(DirectCall& call, std::index_sequence<index...>, const Args&... args) {
    c10::impl::ExcludeDispatchKeyGuard guard(kAboveKernels);
    std::tuple<decltype(local(call, args, 0))...> locals{local(call, args, index)...};  // in this order
    return wrapped(call, std::apply([&](auto&... local) {
      return call.goes_to_cpu() ? AtenOp::redispatch(kCpu, local...) : AtenOp::call(local...);
    }, locals));
  }
};

namespace ops = at::_ops;
using All = KernelList<
    Typed,
    // pointwise
    ops::add_Tensor, ops::sub_Tensor, ops::mul_Tensor, ops::div_Tensor, ops::neg, ops::exp, ops::rsqrt,
    ops::pow_Tensor_Scalar, ops::relu, ops::gelu, ops::silu, ops::sigmoid, ops::tanh, ops::threshold_backward,
    ops::gelu_backward, ops::silu_backward, ops::sigmoid_backward, ops::tanh_backward, ops::where_self,
    ops::masked_fill_Scalar,
    // products
    ops::linear, ops::matmul, ops::mm, ops::bmm, ops::addmm, ops::_scaled_dot_product_flash_attention_for_cpu,
    ops::_scaled_dot_product_flash_attention_for_cpu_backward,
    // reductions and norms
    ops::sum, ops::sum_dim_IntList, ops::mean, ops::mean_dim, ops::var_correction, ops::_softmax,
    ops::_softmax_backward_data, ops::_log_softmax, ops::_log_softmax_backward_data, ops::native_layer_norm,
    ops::native_layer_norm_backward, ops::native_group_norm, ops::native_group_norm_backward,
    // images
    ops::convolution, ops::convolution_backward, ops::max_pool2d_with_indices, ops::max_pool2d_with_indices_backward,
    ops::avg_pool2d, ops::avg_pool2d_backward,
    // structure
    ops::view, ops::_unsafe_view, ops::expand, ops::t, ops::transpose_int, ops::permute, ops::unsqueeze,
    ops::squeeze_dim, ops::select_int, ops::slice_Tensor, ops::split_Tensor, ops::split_with_sizes, ops::cat, ops::stack>;

}  // namespace

bool has_typed_kernel(const std::string& op) { return All::has(op); }

void register_typed(torch::Library& library) { All::add_to(library); }

}  // namespace intarsia
