#pragma once
// Models that are trained for some steps in every way of data parallelism, and what one process gets.

#include <optional>
#include <string>
#include <vector>

#include "intarsia/data_parallel/fully_shard/fully_shard.h"
#include "tests/data_parallel/models.h"

namespace intarsia {

struct Trainee {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<torch::nn::Module*> layers;  // each is to be a group of its own
  Loss loss;
  std::function<at::Tensor(int64_t step, int64_t rows)> batch;
  bool has_statistics = false;  // of the rows that it is given: the mean of parts is not the result of all
};

using MakeTrainee = std::function<Trainee(at::ScalarType)>;

inline Trainee of_sequential(torch::nn::Sequential model, at::ScalarType dtype, std::vector<int64_t> shape) {
  model->to(dtype);
  std::vector<torch::nn::Module*> layers;
  for (auto& child : model->children()) {
    if (!child->parameters().empty()) layers.push_back(child.get());
  }
  return {model.ptr(), layers, [model](auto& x) mutable { return model->forward(x).square().mean(); },
          [=](int64_t step, int64_t rows) mutable {
            shape[0] = rows;
            return inputs(step, shape).to(dtype);
          }};
}

// Sizes that 2 to 8 ranks do not divide evenly: 5, 7 and 3.
inline Trainee mlp_trainee(at::ScalarType dtype) { return of_sequential(mlp(), dtype, {0, 5}); }
inline Trainee cnn_trainee(at::ScalarType dtype) {
  auto trainee = of_sequential(cnn(), dtype, {0, 2, 6, 6});
  trainee.has_statistics = true;
  return trainee;
}

inline Trainee llama_trainee(at::ScalarType dtype, bool tied) {
  auto model = small_llama(tied);
  model->to(dtype);
  std::vector<torch::nn::Module*> layers;
  for (auto& layer : *model->layers) layers.push_back(layer.get());
  auto loss = [model](const at::Tensor& tokens) mutable {
    auto logits = model->forward(tokens.narrow(1, 0, 6)).flatten(0, 1);
    return torch::cross_entropy_loss(logits, tokens.narrow(1, 1, 6).flatten());
  };
  auto batch = [](int64_t step, int64_t rows) { return inputs(step, {rows, 7}).mul(1e4).to(at::kLong).remainder(17); };
  return {model.ptr(), layers, loss, batch};
}
inline Trainee untied_llama(at::ScalarType dtype) { return llama_trainee(dtype, false); }
inline Trainee tied_llama(at::ScalarType dtype) { return llama_trainee(dtype, true); }

// The same with every third parameter frozen.
inline MakeTrainee partly_frozen(MakeTrainee make) {
  return [make](at::ScalarType dtype) {
    auto trainee = make(dtype);
    auto parameters = trainee.module->parameters();
    for (size_t i = 1; i < parameters.size(); i += 3) parameters[i].set_requires_grad(false);
    return trainee;
  };
}

// A way of data parallelism, over all ranks of the current world.
struct ParallelWay {
  std::string name;
  std::function<void(Trainee&)> wrap;
  int64_t passes = 1;  // backward passes of a step; the last one brings the ranks together
};

inline std::function<void(Trainee&)> sharded(FullyShardOptions options = {}, bool copies = false) {
  return [=](Trainee& trainee) {
    auto n = current_world().size();
    auto mesh =
        copies ? init_device_mesh(at::kCPU, {n % 2 ? n : 2, n % 2 ? 1 : n / 2}, {"copies", "shards"}) : all_ranks();
    for (auto* layer : trainee.layers) fully_shard(*layer, mesh, options);
    fully_shard(*trainee.module, mesh, options);
  };
}

inline std::function<void(Trainee&)> replicated(ReplicateOptions options = {}) {
  return [=](Trainee& trainee) { replicate(*trainee.module, all_ranks(), options); };
}

inline std::vector<ParallelWay> ways() {
  ReplicateOptions views;
  views.gradient_as_bucket_view = true, views.first_bucket_mb = views.bucket_cap_mb = 1e-4;
  FullyShardOptions kept, freed, columns;
  kept.reshard_after_forward = false;
  freed.reshard_after_forward = true;
  columns.shard_dim = [](auto&, const at::Tensor& p) -> std::optional<int64_t> { return p.dim() - 1; };
  return {{"replicate", replicated()},
          {"replicate, small buckets", replicated(views)},
          {"replicate, three passes", replicated(), 3},
          {"fully_shard", sharded()},
          {"fully_shard, kept after forward", sharded(kept)},
          {"fully_shard, last dim", sharded(columns)},
          {"fully_shard, three passes", sharded(freed), 3},
          {"fully_shard, copies", sharded({}, true)},
          {"fully_shard, copies, three passes", sharded({}, true), 3}};
}

inline torch::optim::SGD optimizer_for(const Trainee& trainee) {
  return torch::optim::SGD(trainee.module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

// The losses of each hosted rank in a step of a trainee that is parallel. `part`: this rank's rows of a batch.
inline std::vector<double> parallel_step(Trainee& trainee, torch::optim::Optimizer& optimizer, int64_t passes,
                                         const std::function<at::Tensor(int64_t pass)>& part) {
  optimizer.zero_grad();
  std::vector<double> losses(current_world().hosted().size(), 0);
  for (int64_t pass = 0; pass < passes; ++pass) {
    bool last = pass + 1 == passes;
    std::optional<NoSync> no_sync;
    if (!last) no_sync.emplace(*trainee.module);
    for (auto& group : groups_in(*trainee.module)) group.set_requires_gradient_sync(last);
    auto loss = trainee.loss(part(pass));
    loss.backward();
    for (size_t slot = 0; slot < losses.size(); ++slot) losses[slot] += value_at(loss.detach(), slot).item<double>();
  }
  optimizer.step();
  return losses;
}

// Of all ranks, from those of the hosted ones.
inline double mean_of_ranks(const std::vector<double>& losses) {
  Shards values;
  for (auto loss : losses) values.push_back(at::tensor(loss, at::kDouble));
  auto local = values.size() == 1 ? values[0] : per_rank(std::move(values));
  return full_tensor(from_local(local, all_ranks(), {Partial(ReduceOp::avg)})).item<double>();
}

}  // namespace intarsia
