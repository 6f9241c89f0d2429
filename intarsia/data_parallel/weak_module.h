#pragma once
// Modules that are held weakly, also those that no shared pointer owns: on the stack, or members of other objects.

#include <atomic>
#include <memory>

namespace torch::nn {
class Module;
}

namespace intarsia {

// Note [The life of a module]
// A module inherits std::enable_shared_from_this, whose weak pointer is empty in a module that nobody owns. It is given
// the only weak reference to a control block without an owner, so for shared_from_this nothing changes; and the
// allocator of that block says when it is freed, which is when the module goes.
class WeakModule {
 public:
  explicit WeakModule(const torch::nn::Module& module);
  // The module, which is not to be kept; null once it has gone.
  std::shared_ptr<const torch::nn::Module> lock() const;
  bool expired() const { return !lock(); }

 private:
  std::weak_ptr<const torch::nn::Module> owned_;
  const torch::nn::Module* unowned_ = nullptr;
  std::shared_ptr<const std::atomic<bool>> gone_;  // of one that nobody owns
};

}  // namespace intarsia
