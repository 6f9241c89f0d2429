#pragma once
// The parameter type of functions that take a module by reference, holder (torch::nn::Linear, AnyModule) or shared
// pointer.
//
//   replicate(*model, mesh);  replicate(model, mesh);  replicate(model.ptr(), mesh);

#include <concepts>

#include <c10/util/Exception.h>

namespace torch::nn {
class Module;
}

namespace intarsia {

// A const holder owns a module that may be changed, as a const pointer points to one.
template <class Owner>
concept ModuleHolderLike = requires(const Owner& owner) {
  { owner.ptr().get() } -> std::convertible_to<torch::nn::Module*>;
  { owner.is_empty() } -> std::convertible_to<bool>;
};
template <class Owner>
concept ModulePointerLike = requires(const Owner& owner) {
  { owner.get() } -> std::convertible_to<torch::nn::Module*>;
};
template <class Owner>
concept ModuleOwner = ModuleHolderLike<Owner> || ModulePointerLike<Owner>;

// A module as an argument. Do not store it: it does not own the module.
class ModuleRef {
 public:
  ModuleRef(torch::nn::Module& module) : module_(&module) {}
  template <ModuleOwner Owner>
  ModuleRef(const Owner& owner) : module_(address_in(owner)) {}

  torch::nn::Module& operator*() const { return *module_; }
  torch::nn::Module* operator->() const { return module_; }

  // The module of any owner, with its type.
  template <ModuleOwner Owner>
  static auto* address_in(const Owner& owner) {
    if constexpr (ModuleHolderLike<Owner>) {
      TORCH_CHECK_VALUE(!owner.is_empty() && owner.ptr(), "[ModuleRef] the holder of a module is empty. Make the ",
                        "module first.");
      return owner.ptr().get();
    } else {
      TORCH_CHECK_VALUE(owner.get(), "[ModuleRef] the pointer to a module is null. Make the module first.");
      return owner.get();
    }
  }

 private:
  torch::nn::Module* module_;
};

// The same for functions that leave the module as it is.
class ConstModuleRef {
 public:
  ConstModuleRef(const torch::nn::Module& module) : module_(&module) {}
  ConstModuleRef(ModuleRef module) : module_(&*module) {}
  template <ModuleOwner Owner>
  ConstModuleRef(const Owner& owner) : module_(ModuleRef::address_in(owner)) {}

  const torch::nn::Module& operator*() const { return *module_; }
  const torch::nn::Module* operator->() const { return module_; }

 private:
  const torch::nn::Module* module_;
};

}  // namespace intarsia
