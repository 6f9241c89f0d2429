#include "intarsia/libtorch/variable_hooks.h"

#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/VariableHooksInterface.h>

namespace intarsia {
namespace {

using at::TensorBase;
using Interface = at::impl::VariableHooksInterface;

// Forwards all but set_data to LibTorch's hooks.
class WatchingHooks final : public Interface {
 public:
  explicit WatchingHooks(Interface* theirs) : theirs_(theirs) {}
  Interface& theirs() const { return *theirs_; }
  void ask(TakeData take) { take_ = take; }

  void set_data(const TensorBase& self, const TensorBase& data) const override {
    if (!take_ || !take_(at::Tensor(self), at::Tensor(data))) theirs_->set_data(self, data);
  }

  TensorBase tensor_data(const TensorBase& t) const override { return theirs_->tensor_data(t); }
  TensorBase variable_data(const TensorBase& t) const override { return theirs_->variable_data(t); }
  const c10::intrusive_ptr<torch::autograd::Node>& grad_fn(const TensorBase& t) const override {
    return theirs_->grad_fn(t);
  }
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
  void _backward(const at::Tensor& t, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                 std::optional<bool> keep, bool create) const override {
    theirs_->_backward(t, inputs, gradient, keep, create);
  }
  void requires_grad_(const TensorBase& t, bool requires_grad) const override {
    theirs_->requires_grad_(t, requires_grad);
  }
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
  TakeData take_ = nullptr;
};

// Installed on first use.
WatchingHooks& hooks() {
  static auto* instance = [] {
    auto* ours = new WatchingHooks(at::impl::GetVariableHooks());
    at::impl::SetVariableHooks(ours);
    return ours;
  }();
  return *instance;
}

thread_local bool probing_ = false;
thread_local bool reached_ = false;

}  // namespace

void replace_set_data(TakeData take) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  hooks().ask(take);
}

void set_data_of_libtorch(const at::Tensor& tensor, const at::Tensor& data) { hooks().theirs().set_data(tensor, data); }

bool set_data_can_be_replaced() {
  // Never freed: another thread may be inside it when this one restores LibTorch's hooks.
  static auto* probe = new WatchingHooks(at::impl::GetVariableHooks());
  probe->ask([](const at::Tensor&, const at::Tensor&) { return probing_ && (reached_ = true); });
  auto* before = at::impl::GetVariableHooks();
  auto tensor = at::empty({0}), data = at::empty({0});
  probing_ = true;
  reached_ = false;
  at::impl::SetVariableHooks(probe);
  tensor.set_data(data);
  at::impl::SetVariableHooks(before);
  probing_ = false;
  return reached_;
}

}  // namespace intarsia
