#include "intarsia/tensor/alike.h"

#include <set>

#include <ATen/ATen.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/sub_ops.h>

#include "intarsia/tensor/kernel.h"
#include "intarsia/tensor/meta.h"
#include "intarsia/tensor/op_watch.h"

namespace intarsia {
namespace {

// Note [Tensors that lie alike]
// An elementwise op on tensors of one form and one layout, none of it pending, is that op on the local tensors, and needs
// neither a decision nor a stack of boxed arguments. Small updates of many parameters would spend a third of their time
// there. Whatever is not that simple goes the way of all ops.
const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

const at::Tensor* cpu_shard(DTensorMeta& meta) {
  auto& shards = meta.shards();
  if (shards.size() != 1) return nullptr;
  auto above = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  return shards[0].key_set() - above == kCpu ? &shards[0] : nullptr;
}

// One argument beside `self`: the tensor to use on this rank, or the number as it is.
class Local {
 public:
  Local(const at::Tensor& self, const Layout* layout, const at::Tensor& argument) {
    if (!is_dtensor(argument) || argument.scalar_type() != self.scalar_type() || argument.sizes() != self.sizes()) return;
    auto& meta = meta_of(argument);
    shard_ = meta.layout == layout ? cpu_shard(meta) : nullptr;
  }
  explicit operator bool() const { return shard_ != nullptr; }
  operator const at::Tensor&() const { return *shard_; }

 private:
  const at::Tensor* shard_ = nullptr;
};

class Number {
 public:
  Number(const at::Tensor&, const Layout*, const at::Scalar& argument) : number_(argument) {}
  explicit operator bool() const { return !number_.isSymbolic(); }
  operator const at::Scalar&() const { return number_; }

 private:
  const at::Scalar& number_;
};

Local local(const at::Tensor& self, const Layout* layout, const at::Tensor& argument) { return {self, layout, argument}; }
Number local(const at::Tensor& self, const Layout* layout, const at::Scalar& argument) { return {self, layout, argument}; }

template <class AtenOp, class Schema = typename AtenOp::schema>
struct Alike;

template <class AtenOp, class... Args>
struct Alike<AtenOp, at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& run(at::Tensor& self, Args... args) {
    if (C10_LIKELY(!OpWatch::open()) && is_dtensor(self) && self.is_floating_point() &&
        self.is_non_overlapping_and_dense()) {
      auto* layout = meta_of(self).layout;
      if (!layout->has_partial() && run_local(self, layout, local(self, layout, args)...)) return self;
    }
    static const auto* op = new Op(c10::Dispatcher::singleton().findSchemaOrThrow(AtenOp::name, AtenOp::overload_name));
    std::vector<c10::IValue> stack{self, args...};
    run_op(*op, stack);
    return self;
  }

  template <class... Locals>
  static bool run_local(at::Tensor& self, const Layout*, const Locals&... locals) {
    auto& meta = meta_of(self);
    auto* shard = cpu_shard(meta);
    if (!shard || !(static_cast<bool>(locals) && ...)) return false;
    auto target = *shard;
    AtenOp::redispatch(kCpu, target, locals...);
    meta.written();
    return true;
  }
};

template <class AtenOp>
std::string name_of() {
  std::string name = AtenOp::name, overload = AtenOp::overload_name;
  return overload.empty() ? name : name + "." + overload;
}

template <class... AtenOps>
struct List {
  static std::set<std::string> names() { return {name_of<AtenOps>()...}; }
  static void add_to(torch::Library& library) { (library.impl(name_of<AtenOps>().substr(6).c_str(), Alike<AtenOps>::run), ...); }
};

namespace ops = at::_ops;
using All = List<ops::add__Tensor, ops::sub__Tensor, ops::mul__Tensor, ops::div__Tensor, ops::addcmul_, ops::addcdiv_,
                 ops::lerp__Scalar>;

}  // namespace

bool has_alike_kernel(const std::string& op) {
  static const auto* names = new std::set<std::string>(All::names());
  return names->count(op) > 0;
}

void register_alike(torch::Library& library) { All::add_to(library); }

}  // namespace intarsia
