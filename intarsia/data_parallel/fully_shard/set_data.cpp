#include "intarsia/data_parallel/fully_shard/set_data.h"

#include <memory>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/VariableHooksInterface.h>

#include "intarsia/core/foreign.h"
#include "intarsia/data_parallel/fully_shard/unshard_on_use.h"
#include "intarsia/data_parallel/leaf_hooks.h"

namespace intarsia {
namespace {

using at::TensorBase;
using Interface = at::impl::VariableHooksInterface;

class WatchingHooks final : public Interface {
 public:
  explicit WatchingHooks(Interface* theirs) : theirs_(theirs) {}
  Interface& theirs() const { return *theirs_; }

  void set_data(const TensorBase& self, const TensorBase& data) const override {
    at::Tensor leaf(self);
    auto owner = leaf.is_leaf() ? std::dynamic_pointer_cast<ParamOwner>(watcher_of(leaf)) : nullptr;
    if (!owner) return theirs_->set_data(self, data);
    check_no_wrapper(at::Tensor(data), "set_data", "the data of a parameter");
    owner->take_value(leaf, at::Tensor(data));
  }

  TensorBase tensor_data(const TensorBase& t) const override { return theirs_->tensor_data(t); }
  TensorBase variable_data(const TensorBase& t) const override { return theirs_->variable_data(t); }
  const c10::intrusive_ptr<torch::autograd::Node>& grad_fn(const TensorBase& t) const override { return theirs_->grad_fn(t); }
  unsigned _register_hook(const TensorBase& t, std::function<TensorBase(const TensorBase&)> hook) const override {
    return theirs_->_register_hook(t, std::move(hook));
  }
  void remove_hook(const TensorBase& t, unsigned position) const override { theirs_->remove_hook(t, position); }
  bool is_view(const TensorBase& t) const override { return theirs_->is_view(t); }
  const TensorBase& base(const TensorBase& t) const override { return theirs_->base(t); }
  const std::string& name(const TensorBase& t) const override { return theirs_->name(t); }
  bool is_leaf(const TensorBase& t) const override { return theirs_->is_leaf(t); }
  int64_t output_nr(const TensorBase& t) const override { return theirs_->output_nr(t); }
  TensorBase data(const TensorBase& t) const override { return theirs_->data(t); }
  int64_t _version(const TensorBase& t) const override { return theirs_->_version(t); }
  void retain_grad(const TensorBase& t) const override { theirs_->retain_grad(t); }
  bool retains_grad(const TensorBase& t) const override { return theirs_->retains_grad(t); }
  void _backward(const at::Tensor& t, at::TensorList inputs, const std::optional<at::Tensor>& gradient, std::optional<bool> keep,
                 bool create) const override {
    theirs_->_backward(t, inputs, gradient, keep, create);
  }
  void requires_grad_(const TensorBase& t, bool requires_grad) const override { theirs_->requires_grad_(t, requires_grad); }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    theirs_->basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& t) const override { return theirs_->grad_dtype(t); }
  void set_grad_dtype(const TensorBase& t, const std::optional<c10::ScalarType>& dtype) const override {
    theirs_->set_grad_dtype(t, dtype);
  }

 private:
  Interface* theirs_;
};

WatchingHooks& watching_hooks() {
  static auto* hooks = new WatchingHooks(at::impl::GetVariableHooks());
  return *hooks;
}

}  // namespace

void watch_set_data() {
  static std::once_flag once;
  std::call_once(once, [] { at::impl::SetVariableHooks(&watching_hooks()); });
}

void set_data_unwatched(const at::Tensor& leaf, const at::Tensor& value) { watching_hooks().theirs().set_data(leaf, value); }

}  // namespace intarsia
