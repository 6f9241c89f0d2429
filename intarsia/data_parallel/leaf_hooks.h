#pragma once
// Hooks that run when a leaf gets a gradient, for parameters of any module.
//
// Note [Who owns a watcher]
// Modules of torch::nn have no place for a watcher of their parameters, and may live on the stack. So the parameters
// own it: the watcher is attached to the autograd metadata of each leaf, and is destroyed with the last of them. It
// holds the leaves weakly. A leaf's gradient is accumulated by a node that lives as long as a graph does; the hook that
// runs after that is put on the node when a gradient first arrives.

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace intarsia {

class LeafWatcher {
 public:
  virtual ~LeafWatcher() = default;
  // A gradient has arrived for leaf number `index`, and is about to be added to the leaf's. Not called for a gradient
  // that torch::autograd::grad requests: that is the gradient of this rank's own loss.
  virtual void before_gradient(size_t index, const at::Tensor& grad) = 0;
  // It has been added.
  virtual void after_gradient(size_t index) = 0;
  // The leaf is given data by set_data: true if the watcher has taken it, else LibTorch does. May refuse it. Heard once
  // watch_set_data was called.
  virtual bool take_data(size_t index, const at::Tensor& leaf, const at::Tensor& data) { return false; }
};

// Attaches the watcher to the leaf, which it knows by `index`.
void watch_leaf(const at::Tensor& leaf, std::shared_ptr<LeafWatcher> watcher, size_t index);

// Removes the watcher, and restores the program's hooks.
void unwatch_leaf(const at::Tensor& leaf);

// The watcher of the leaf; null if it has none.
std::shared_ptr<LeafWatcher> watcher_of(const at::Tensor& leaf);
// The same, and the number by which the watcher knows the leaf.
struct Watched {
  std::shared_ptr<LeafWatcher> watcher;
  size_t index = 0;
};
Watched watched(const at::Tensor& leaf);

// Raises an error if the gradient has a graph (create_graph): the reduced gradient has none.
void check_has_no_graph(const char* where, const std::string& name, const at::Tensor& grad);

// Note [Hooks of the program]
// The gradient of one rank is not yet what a program expects in its hooks. So the program's hooks on a watched leaf are
// held back during the backward pass, and run when the reduced gradient is there: an optimizer may step in them. For
// tensor hooks this holds if the leaf's gradient is in shards (`tensor_hooks`); on replicated leaves they see the
// gradient of the rank, as PyTorch's do.

// Call this before a gradient is added. Hooks that were added since are held back as well.
void hold_hooks(const at::Tensor& leaf, bool tensor_hooks);
// The reduced gradient after the tensor hooks.
at::Tensor after_tensor_hooks(const at::Tensor& leaf, at::Tensor grad);
// Call this when the leaf has the reduced gradient.
void run_post_accumulate_hooks(const at::Tensor& leaf);

// Whether such a hook is running: what it does is not a part of the backward pass.
bool is_in_hook_of_program();
// Whether a backward pass runs on this thread, and no hook of the program inside it.
bool is_in_backward();

// A weak reference to a tensor.
class WeakTensor {
 public:
  WeakTensor(const at::Tensor& tensor) : impl_(tensor.getIntrusivePtr()) {}
  at::Tensor lock() const {
    auto impl = impl_.lock();
    return impl ? at::Tensor(std::move(impl)) : at::Tensor();
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl> impl_;
};

}  // namespace intarsia
