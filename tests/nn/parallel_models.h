#pragma once
// The models of the tests of tensor parallelism, and how a parallel one is compared with a plain one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "intarsia/intarsia.h"
#include "intarsia/simulation/per_rank/per_rank.h"

namespace intarsia {

struct MLPModuleImpl : torch::nn::Cloneable<MLPModuleImpl> {
  explicit MLPModuleImpl(int64_t features = 10, int64_t hidden = 16) : features(features), hidden(hidden) { reset(); }
  void reset() override {
    torch::manual_seed(5);
    net1 = register_module("net1", torch::nn::Linear(features, hidden));
    net2 = register_module("net2", torch::nn::Linear(hidden, features));
  }
  at::Tensor forward(at::Tensor x) { return net2(torch::relu(net1(x))); }
  int64_t features, hidden;
  torch::nn::Linear net1{nullptr}, net2{nullptr};
};
INTARSIA_MODULE(MLPModule);

struct MLPStackedImpl : torch::nn::Cloneable<MLPStackedImpl> {
  explicit MLPStackedImpl(int64_t layer_count = 2) : layer_count(layer_count) { reset(); }
  void reset() override {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < layer_count; ++i) layers->push_back(MLPModule());
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : *layers) x = layer->as<Hooked<MLPModuleImpl>>()->forward(x);
    return x;
  }
  int64_t layer_count;
  torch::nn::ModuleList layers{nullptr};
};
INTARSIA_MODULE(MLPStacked);

// A deep copy under the same kind of holder.
template <class Holder>
Holder deepcopy(const Holder& module) {
  return Holder(std::dynamic_pointer_cast<typename Holder::ContainedType>(module->clone()));
}

// The values of all hosted ranks: of a distributed tensor the whole, else what each rank holds.
inline std::vector<at::Tensor> values(const at::Tensor& tensor) {
  if (is_dtensor(tensor)) return {full_tensor(tensor)};
  if (!is_per_rank(tensor)) return {tensor};
  return {values_of(tensor).begin(), values_of(tensor).end()};
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  for (auto& value : values(actual)) {
    ASSERT_EQ(value.sizes(), expected.sizes()) << what;
    EXPECT_TRUE(torch::allclose(value, expected, 1e-5, 1e-6)) << what << "\n" << value << "\n" << expected;
  }
}

inline void compare_params(torch::nn::Module& plain, torch::nn::Module& parallel, bool grads) {
  auto theirs = parallel.named_parameters();
  for (auto& item : plain.named_parameters()) {
    auto& own = theirs[item.key()];
    expect_close(grads ? own.grad() : own, grads ? item.value().grad() : item.value(), item.key());
  }
}

// Parameters, output, gradients and the parameters after a step are those of the plain model. With `cut` the parallel
// model gets its rank's columns of the input.
template <class Plain, class Parallel>
void compare_module(Plain& plain, Parallel& parallel, std::vector<int64_t> size, const DeviceMesh& mesh,
                    bool cut = false) {
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.25), parallel_optimizer(parallel->parameters(), 0.25);
  torch::manual_seed(0);
  auto input = torch::rand(size);
  compare_params(*plain, *parallel, false);
  auto output = plain->forward(input);
  auto own_input = cut ? to_local(distribute_tensor(input, mesh, {Shard(-1)})) : input;
  auto own_output = parallel->forward(own_input);
  if (is_dtensor(own_output)) own_output = to_local(redistribute(own_output, {Replicate()}));
  expect_close(own_output, output, "output");
  output.sum().backward();
  own_output.sum().backward();
  compare_params(*plain, *parallel, true);
  plain_optimizer.step();
  parallel_optimizer.step();
  compare_params(*plain, *parallel, false);
}

// Collects warnings while it lives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : outer_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(outer_); }
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;

 private:
  c10::WarningHandler* outer_;
};

}  // namespace intarsia
