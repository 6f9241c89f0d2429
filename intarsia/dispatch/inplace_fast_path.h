#pragma once
// The kernel template of elementwise in-place ops, with a fast path for tensors of one layout: the common case in
// optimizers. Included by the files that list its ops.

#include <ATen/ATen.h>

#include "intarsia/comm/mix_hash.h"
#include "intarsia/dispatch/kernel_list.h"
#include "intarsia/dispatch/origins.h"
#include "intarsia/dispatch/run.h"
#include "intarsia/dispatch/watch.h"
#include "intarsia/tensor/body.h"

namespace intarsia {

// Note [The in-place fast path]
// An elementwise op on tensors of one form and one layout, nothing pending, is that op on the local tensors, and needs
// neither a decision nor a stack of boxed arguments. Small updates of many parameters would spend a third of their time
// there. Whatever is not that simple goes through dispatch.

namespace inplace {

inline const at::Tensor* cpu_shard(DTensorBody& body) {
  auto& shards = body.shards();
  if (shards.size() != 1) return nullptr;
  return shards[0].key_set() - kAboveKernels == kCpu ? &shards[0] : nullptr;
}

// The local value of an argument besides `self`: the shard of a tensor that has the same layout, else null. Numbers are
// passed on.
inline const at::Tensor* local(const at::Tensor& self, const at::Tensor& argument) {
  if (!is_dtensor(argument) || argument.scalar_type() != self.scalar_type() || argument.sizes() != self.sizes())
    return nullptr;
  auto& body = body_of(argument);
  return body.layout == body_of(self).layout ? cpu_shard(body) : nullptr;
}
inline const at::Scalar* local(const at::Tensor&, const at::Scalar& argument) {
  return argument.isSymbolic() ? nullptr : &argument;
}

inline void add_origin(Origin& operands, uint64_t&, const at::Tensor& argument) {
  operands.add(body_of(argument).origin);
}
inline void add_origin(Origin&, uint64_t& numbers, const at::Scalar& argument) {
  numbers = mix_hash(numbers, bits_of(argument));
}

}  // namespace inplace

template <class AtenOp, class Schema = typename AtenOp::schema>
struct InplaceFastPath;

template <class AtenOp, class... Args>
struct InplaceFastPath<AtenOp, at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& run(at::Tensor& self, Args... args) {
    if (C10_LIKELY(!OpWatch::open()) && is_dtensor(self) && self.is_floating_point() &&
        self.is_non_overlapping_and_dense() && !body_of(self).layout->has_partial()) {
      if (run_local(self, inplace::local(self, args)...)) return note(self, args...), self;
    }
    std::vector<c10::IValue> stack{self, args...};
    run_op(op(), stack);
    return self;
  }

  static const Op& op() {
    static const auto* op = new Op(c10::Dispatcher::singleton().findSchemaOrThrow(AtenOp::name, AtenOp::overload_name));
    return *op;
  }

  // Records the origin as dispatch does. See Note [Origins].
  static void note(const at::Tensor& self, const Args&... args) {
    auto& body = body_of(self);
    if (body.layout->mesh().size() == 1) return body.written(Origin());
    auto operands = Origin();
    operands.add(body.origin);
    uint64_t numbers = 0;
    (inplace::add_origin(operands, numbers, args), ...);
    auto what = mix_hash(op().hash, numbers);
    body.written(calls_on(body.layout->mesh()).add(op().name.c_str(), body.layout, what, operands));
  }

  template <class... Locals>
  static bool run_local(at::Tensor& self, const Locals*... locals) {
    auto& body = body_of(self);
    auto* shard = inplace::cpu_shard(body);
    if (!shard || !(locals && ...)) return false;
    auto target = *shard;
    AtenOp::redispatch(kCpu, target, *locals...);
    return true;
  }
};

}  // namespace intarsia
