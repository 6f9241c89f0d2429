#pragma once
// What runs when a leaf gets a gradient, on parameters of any module.
//
// Note [Who owns a watcher]
// Modules of torch::nn have no place for what watches over their parameters, and may live on the stack. So the
// parameters own it: the watcher hangs on the autograd record of each leaf, and goes when the last of them goes. It
// holds the leaves weakly. A leaf's gradient is added up by a node that lives as long as a graph does; the hook that
// runs after that is put on the node when a gradient first comes by.

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace intarsia {

class LeafWatcher {
 public:
  virtual ~LeafWatcher() = default;
  // A gradient has come for leaf number `index`, and is about to be added to what the leaf has. Not one that
  // torch::autograd::grad asks for: that is the gradient of this rank's own loss.
  virtual void before_gradient(size_t index, const at::Tensor& grad) = 0;
  // It has been added.
  virtual void after_gradient(size_t index) = 0;
  // The leaf is given data by set_data: true if the watcher has taken it, else LibTorch does. May refuse it. Heard once
  // watch_set_data was called.
  virtual bool take_data(size_t index, const at::Tensor& leaf, const at::Tensor& data) { return false; }
};

void watch_leaf(const at::Tensor& leaf, std::shared_ptr<LeafWatcher> watcher, size_t index);

// Nobody watches from now on, and the hooks of the program are where they were.
void unwatch_leaf(const at::Tensor& leaf);

// Who watches over the leaf; null if nobody does.
std::shared_ptr<LeafWatcher> watcher_of(const at::Tensor& leaf);
// The same, and the number by which the watcher knows the leaf.
struct Watched {
  std::shared_ptr<LeafWatcher> watcher;
  size_t index = 0;
};
Watched watched(const at::Tensor& leaf);

// An error if the gradient has a graph of its own (create_graph): what the ranks bring together has none.
void check_has_no_graph(const char* where, const std::string& name, const at::Tensor& grad);

// Note [Hooks of the program]
// A gradient of one rank is not yet what a program expects of its hooks. So the program's own hooks on a watched leaf
// are held back during the backward pass, and run when the reduced gradient is there: an optimizer may step in them.
// For tensor hooks this holds where the leaf's gradient is in shards (`tensor_hooks`); on replicated leaves they see
// the gradient of the rank, as PyTorch's do.

// To be called before a gradient is added. Hooks that came since are held back, too.
void hold_hooks(const at::Tensor& leaf, bool tensor_hooks);
// What the tensor hooks make of the reduced gradient.
at::Tensor after_tensor_hooks(const at::Tensor& leaf, at::Tensor grad);
// The reduced gradient lies in the leaf.
void run_post_accumulate_hooks(const at::Tensor& leaf);

// Whether such a hook is running: what it does is not a part of the backward pass.
bool is_in_hook_of_program();
// Whether a backward pass runs on this thread, and no hook of the program inside it.
bool is_in_backward();

// A tensor that is held weakly.
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
