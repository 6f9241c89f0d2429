#include "tests/processes/optimizer_plays.h"

#include <cstdlib>
#include <filesystem>

#include <torch/torch.h>

#include "intarsia/checkpoint/checkpoint.h"
#include "intarsia/job/init.h"
#include "intarsia/nn/distribute_module.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

using namespace torch::optim;

constexpr double kOther = 0.5;  // the rate comes from the checkpoint

std::unique_ptr<Optimizer> optimizer_called(const std::string& kind, std::vector<at::Tensor> parameters) {
  if (kind == "SGD") return std::make_unique<SGD>(parameters, SGDOptions(kOther));
  if (kind == "Adam") return std::make_unique<Adam>(parameters, AdamOptions(kOther));
  if (kind == "AdamW") return std::make_unique<AdamW>(parameters, AdamWOptions(kOther));
  if (kind == "Adagrad") return std::make_unique<Adagrad>(parameters, AdagradOptions(kOther));
  if (kind == "RMSprop") return std::make_unique<RMSprop>(parameters, RMSpropOptions(kOther));
  TORCH_CHECK(kind == "LBFGS", "there is no ", kind);
  return std::make_unique<LBFGS>(parameters, LBFGSOptions(kOther));
}

void train_on(const std::string& folder, const std::string& kind, const DeviceMesh& mesh) {
  torch::nn::Sequential model(torch::nn::Linear(10, 16), torch::nn::ReLU(), torch::nn::Linear(16, 10));
  model->to(at::kDouble);
  distribute_module(*model, mesh, [](auto& name, auto& module, auto& mesh) {
    if (name == "0") distribute_parameter(module, "weight", mesh, {Shard(0)});
    if (name == "2") distribute_parameter(module, "weight", mesh, {Shard(1)});
  });
  auto optimizer = optimizer_called(kind, model->parameters());
  auto step = checkpoint::load(folder + "/python", {{"model", model}, {"optimizer", *optimizer}}).integer("step");
  for (auto end = step + 2; step < end; ++step) {
    optimizer->step([&] {
      optimizer->zero_grad();
      auto x = full({3, 10}, 0.1 * (step + 1), mesh, {Replicate()}, at::kDouble);
      auto loss = model->forward(x).square().sum();
      loss.backward();
      return full_tensor(loss);
    });
  }
  checkpoint::save(folder + "/cpp", {{"model", model}, {"optimizer", *optimizer}, {"step", step}});
}

}  // namespace

void play_train_on() {
  init();
  auto mesh = init_device_mesh(at::kCPU, {world_size()});
  std::vector<std::filesystem::path> folders;
  for (auto& entry : std::filesystem::directory_iterator(std::getenv("INTARSIA_TEST_FOLDER")))
    folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  for (auto& folder : folders) train_on(folder, folder.filename(), mesh);
}

}  // namespace intarsia
