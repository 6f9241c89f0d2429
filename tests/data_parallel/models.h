#pragma once
// Models and training loops of the tests of data parallelism, and what one process gets.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "examples/llama.h"
#include "intarsia/data_parallel/replicate/replicate.h"
#include "intarsia/intarsia.h"
#include "intarsia/simulation/per_rank/per_rank.h"
#include "tests/support/worlds.h"

namespace intarsia {

// Unmodified modules of torch::nn, in double, the same on every call.
inline torch::nn::Sequential mlp(int64_t hidden = 7) {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(5, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, hidden),
                              torch::nn::Tanh(), torch::nn::Linear(hidden, 3));
  model->to(at::kDouble);
  return model;
}

inline torch::nn::Sequential cnn() {
  torch::manual_seed(4);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)),
                              torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3).stride(2)), torch::nn::BatchNorm2d(3),
                              torch::nn::Flatten(), torch::nn::Linear(3 * 2 * 2, 3));
  model->to(at::kDouble);
  return model;
}

inline llama::Model small_llama(bool tied) {
  torch::manual_seed(5);
  llama::Options options;
  options.vocabulary = 17, options.width = 16, options.heads = 4, options.key_heads = 2, options.hidden = 20,
  options.layers = 2;
  options.tied = tied;
  llama::Model model(options);
  model->to(at::kDouble);
  return model;
}

inline DeviceMesh all_ranks() { return init_device_mesh(at::kCPU, {current_world().size()}, {"dp"}); }

// This rank's rows of what all ranks have; in a simulation one value per rank.
inline at::Tensor mine(const at::Tensor& batch, const DeviceMesh& mesh) {
  return to_local(distribute_tensor(batch, mesh, {Shard(0)}, std::nullopt)).detach();
}

// Batches of one shape that differ by step.
inline at::Tensor inputs(int64_t step, std::vector<int64_t> shape) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), at::kDouble) * 0.37 + static_cast<double>(step))
      .reshape(shape);
}

using Loss = std::function<at::Tensor(const at::Tensor& input)>;  // the mean over the rows that it is given

inline double number(const at::Tensor& loss) {
  if (!is_per_rank(loss)) return loss.item<double>();
  double sum = 0;
  for (auto& value : values_of(loss)) sum += value.item<double>();
  return sum / static_cast<double>(values_of(loss).size());
}

// What a tensor is on the first hosted rank, whole.
inline at::Tensor whole(const at::Tensor& tensor) {
  if (is_dtensor(tensor)) return full_tensor(tensor.detach());
  return value_at(tensor.detach(), 0);
}

inline void expect_same_tensors(const torch::nn::Module& actual, const torch::nn::Module& expected,
                                double tolerance = 1e-12) {
  for (auto [own, goal] : {std::pair(actual.named_parameters(), expected.named_parameters()),
                           std::pair(actual.named_buffers(), expected.named_buffers())}) {
    for (auto& item : goal) {
      auto value = whole(own[item.key()]);
      auto same = value.is_floating_point() ? torch::allclose(value, item.value(), tolerance, tolerance)
                                            : torch::equal(value, item.value());
      EXPECT_TRUE(same) << item.key() << "\n" << value << "\n" << item.value();
    }
  }
}

struct Optimizers {
  torch::optim::Optimizer &own, &goal;
};

// Twenty steps of a model on parts of a batch and of a plain one on all of it: the mean loss of the ranks is the plain
// one's.
template <class Model, class LossOf, class Batch>
void expect_same_losses(Optimizers optimizers, Model model, Model plain, LossOf loss_of, Batch batch_of,
                        const DeviceMesh& mesh, double tolerance) {
  for (int64_t step = 0; step < 20; ++step) {
    optimizers.own.zero_grad(), optimizers.goal.zero_grad();
    auto batch = batch_of(step);
    auto expected = loss_of(plain, batch);
    auto loss = loss_of(model, mine(batch, mesh));
    expected.backward(), loss.backward();
    optimizers.own.step(), optimizers.goal.step();
    auto mean = full_tensor(from_local(loss.detach(), mesh, {Partial(ReduceOp::avg)}));
    ASSERT_NEAR(mean.template item<double>(), expected.template item<double>(), tolerance) << "in step " << step;
  }
}

}  // namespace intarsia
