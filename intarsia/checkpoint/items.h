#pragma once
// Items: the modules, optimizers, tensors, numbers and texts that a program saves and loads, by name.

#include <concepts>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/data/samplers/base.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include "intarsia/checkpoint/index.h"
#include "intarsia/nn/module_ref.h"

namespace torch::optim {
class LRScheduler;
}

namespace intarsia {
class GradScaler;
}

namespace intarsia::checkpoint {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
struct NamedState {
  Tensors tensors;
};

struct Wanted;
// Maps a name to the name in the checkpoint.
using Rename = std::function<std::string(const std::string& name)>;
struct Contents;
// An item whose state is created while it is loaded, from what the checkpoint has, such as that of an optimizer which
// is not of torch::optim: `want` adds what it requests, and must request everything that the checkpoint has under its
// name. `contents` is what is saved of it; without it, the item can only be loaded.
struct StateMaker {
  std::function<void(const std::string& scope, const CheckpointIndex& index, const Rename& rename, Wanted& wanted)>
      want;
  std::function<Contents(const std::string& scope)> contents = nullptr;
};

// See states.h.
using WriteArchive = std::function<void(torch::serialize::OutputArchive&)>;
using ReadArchive = std::function<void(torch::serialize::InputArchive&)>;

// One item to save, or to load into. All but numbers and texts are held by reference.
class Item {
 public:
  Item(torch::nn::Module& module) : content_(&module) {}
  template <ModuleOwner Owner>
  Item(const Owner& module) : content_(static_cast<torch::nn::Module*>(ModuleRef::address_in(module))) {}
  Item(torch::optim::Optimizer& optimizer) : content_(&optimizer) {}
  Item(const at::Tensor& tensor) : content_(tensor) {}
  Item(NamedState state)
      : content_(std::move(state)) {}  // tensors by name, such as a state dict: all names are requested
  Item(StateMaker maker) : content_(std::move(maker)) {}
  Item(torch::optim::LRScheduler& scheduler);  // its number of steps; the rates themselves are the optimizer's
  Item(GradScaler& scaler);
  Item(const at::Generator& generator);  // and samplers: each rank has its own state; see states.h
  template <class Request>
  Item(torch::data::samplers::Sampler<Request>& sampler)
      : Item([&sampler](auto& archive) { sampler.save(archive); },
             [&sampler](auto& archive) { sampler.load(archive); }) {}
  Item(std::same_as<bool> auto flag) : content_(Value(flag)) {}  // no pointer, which would be true
  template <std::integral N>
    requires(!std::same_as<N, bool>)
  Item(N number) : content_(Value(static_cast<int64_t>(number))) {}
  Item(std::floating_point auto number) : content_(Value(static_cast<double>(number))) {}
  Item(const char* text) : content_(Value(std::string(text))) {}
  Item(std::string text) : content_(Value(std::move(text))) {}

  using Content = std::variant<torch::nn::Module*, torch::optim::Optimizer*, at::Tensor, NamedState, StateMaker, Value>;
  const Content& content() const { return content_; }

 private:
  Item(WriteArchive write, ReadArchive read);
  Content content_;
};

// Items by name. What is inside an item gets the item's name and a dot as a prefix: model.fc1.weight. An empty name
// adds no prefix.
using Items = std::vector<std::pair<std::string, Item>>;

// The contents of the items, by full name.
struct Contents {
  Tensors tensors;
  ValueMap values;
};
Contents contents_of(const Items& items);

// Tensors to read into, the values that must be there, and functions to call when all has been read.
struct Wanted {
  Tensors tensors;
  std::vector<std::string> values;
  std::vector<std::string> scopes;            // every tensor of the checkpoint with one of these prefixes is requested,
  std::vector<std::string> value_scopes;      // and every value,
  std::set<std::string> used_values;          // of which these were (names in the checkpoint)
  std::vector<std::function<void()>> finish;  // after all tensors have arrived
};

// The request depends on the index, since states of optimizers are created from what the checkpoint has.
Wanted wanted_by(const Items& items, const CheckpointIndex& index, const Rename& rename);

// The full name of something inside an item: scope.name, or the name alone if the scope is empty.
std::string joined_name(const std::string& scope, const std::string& name);

}  // namespace intarsia::checkpoint
